"""Runs the runner's serving half as a pod would, with places of its own (one JSON object)."""

from __future__ import annotations

import json
import os
import sys

GIVEN = json.loads(sys.argv[1])
sys.path[:0] = [GIVEN["root"]]

from shardwright.runner import serve  # noqa: E402
from shardwright.runner.contract import ENV_REQUEST, ServeRequest, decode  # noqa: E402
from shardwright.runner.serve.places import Pace, Places  # noqa: E402

sys.exit(
    serve.main(
        decode(ServeRequest, os.environ[ENV_REQUEST]),
        Places(**GIVEN["places"]),
        Pace(**GIVEN["pace"]),
    )
)
