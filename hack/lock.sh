#!/usr/bin/env bash
# Locks the dependencies as hashed requirements. No index address is written, so that whoever
# installs uses their own. Versions younger than a week are left out: they are the ones that are
# withdrawn. The extra `engine` stays outside, see pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-.venv/bin}
[ -x "$bin/uv" ] || "$bin/python" -m pip install --quiet uv
age=$(date -u -d '8 days ago' +%Y-%m-%d)
common=(--generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11
  --exclude-newer "$age" --quiet)
"$bin/uv" pip compile pyproject.toml "${common[@]}" -o requirements/runtime.txt
"$bin/uv" pip compile pyproject.toml --group dev "${common[@]}" -o requirements/dev.txt
"$bin/uv" pip compile requirements/moto.in "${common[@]}" -o requirements/moto.txt
