"""Write what the chart and the GitOps files copy from elsewhere; `--check` only compares.

Four texts have one source each and would drift apart if they were kept by hand: the chart's CRD
(from `crds/`), the part of `values.schema.json` that describes the operator's settings (from the
`Settings` model), the table of values in the chart's README (from the comments of `values.yaml`)
and the Argo CD snippet (from `health.lua`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from shardwright.api.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "shardwright"
CRD_SOURCE = ROOT / "crds" / "llmdeployments.yaml"
CRD_COPY = CHART / "files" / "llmdeployments.yaml"
VALUES = CHART / "values.yaml"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"
ARGO = ROOT / "deploy" / "argocd"
LUA = ARGO / "resource_customizations" / "shardwright.dev" / "LLMDeployment" / "health.lua"
ARGO_CM = ARGO / "argocd-cm.yaml"

# Settings that the release fills in by itself: a value for them would have two owners.
OWNED_BY_CHART = ("namespace", "watchNamespaces", "operatorImage", "httpPort")
TABLE_BEGIN = "<!-- values: begin, written by hack/sync_chart.py -->"
TABLE_END = "<!-- values: end -->"


class SyncError(ValueError):
    """A source cannot be read as it should."""


def settings_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """JSON schema of `values.settings`, and the definitions it refers to."""
    schema = _without_titles(Settings.model_json_schema(by_alias=True))
    definitions = schema.pop("$defs", {})
    for name in OWNED_BY_CHART:
        if schema["properties"].pop(name, None) is None:
            raise SyncError(
                f"Settings has no field {name}, which the chart fills in; correct OWNED_BY_CHART"
            )
    lease = definitions["LeaseSettings"]["properties"]["name"]
    lease["minLength"] = 0  # the chart puts the release's full name in an empty one's place
    lease["default"] = ""
    schema["description"] = "The operator's configuration file."
    return schema, definitions


def _without_titles(node: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_titles(value)
        for key, value in node.items()
        # a property may be called title; the keyword's value is always text
        if not (key == "title" and isinstance(value, str))
    }


def values_schema(current: str) -> str:
    """`values.schema.json` with its settings replaced by those of the model."""
    document = json.loads(current)
    document["properties"]["settings"], document["$defs"] = settings_schema()
    return json.dumps(document, indent=2) + "\n"


def described_values(text: str) -> Iterator[tuple[str, Any, str]]:
    """Path, default and description of every value that `values.yaml` describes by `# --`.

    Raises:
        SyncError: If a value stands in no described place, which the table would then lack.
    """
    document = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    described: dict[tuple[str, ...], str] = {}
    comment = ""
    for line in text.splitlines():
        if found := re.match(r"\s*# -- (.*)", line):
            comment = found[1]
        elif found := re.match(r"( *)([A-Za-z][\w.-]*(?:/[\w.-]+)?):", line):
            indent = len(found[1])
            path = [*((at, key) for at, key in path if at < indent), (indent, found[2])]
            if comment:
                described[tuple(key for _, key in path)] = comment
            comment = ""
    for leaf, value in _leaves(document, described):
        yield ".".join(leaf), value, described[leaf]


def _leaves(
    document: dict[str, Any], described: dict[tuple[str, ...], str], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in document.items():
        here = (*path, key)
        if here in described:
            yield here, value
        elif isinstance(value, dict) and value:
            yield from _leaves(value, described, here)
        else:
            raise SyncError(f"{VALUES.name}: {'.'.join(here)} has no `# --` line above it")


def values_table(text: str) -> str:
    """A Markdown table of the values."""
    rows = ["| value | default | what it is |", "| --- | --- | --- |"]
    for path, default, description in described_values(text):
        shown = json.dumps(default).replace("|", "\\|")
        rows.append(f"| `{path}` | `{shown}` | {description.replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def readme(current: str) -> str:
    """The chart's README with its table of values made anew."""
    head, begin, rest = current.partition(TABLE_BEGIN)
    _, end, tail = rest.partition(TABLE_END)
    if not begin or not end:
        raise SyncError(f"{README.name} lacks the marks around the table of values")
    return f"{head}{begin}\n{values_table(VALUES.read_text())}\n{end}{tail}"


def argocd_cm(_: str) -> str:
    """The snippet of Argo CD's ConfigMap that holds our health check."""
    lua = "".join(f"    {line}".rstrip() + "\n" for line in LUA.read_text().splitlines())
    return (
        "# Merge into the ConfigMap of your Argo CD until it knows LLMDeployments by itself:\n"
        "#   kubectl --namespace argocd patch configmap argocd-cm --patch-file argocd-cm.yaml\n"
        "# Written by hack/sync_chart.py from health.lua.\n"
        "apiVersion: v1\n"
        "kind: ConfigMap\n"
        "metadata:\n"
        "  name: argocd-cm\n"
        "  namespace: argocd\n"
        "  labels:\n"
        "    app.kubernetes.io/part-of: argocd\n"
        "data:\n"
        "  resource.customizations.health.shardwright.dev_LLMDeployment: |\n" + lua
    )


def crd_copy(_: str) -> str:
    """The chart's copy of the CRD."""
    if not CRD_SOURCE.exists():
        raise SyncError(f"{CRD_SOURCE.relative_to(ROOT)} is not there; generate the CRD first")
    return CRD_SOURCE.read_text()


TARGETS: tuple[tuple[Path, Callable[[str], str]], ...] = (
    (CRD_COPY, crd_copy),
    (SCHEMA, values_schema),
    (README, readme),
    (ARGO_CM, argocd_cm),
)


def main(arguments: list[str]) -> int:
    """Write, or with `--check` name, the files that are behind their source."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: sync_chart.py [--check]\n")
        return 2
    failed = False
    for path, make in TARGETS:
        name = path.relative_to(ROOT)
        current = path.read_text() if path.exists() else ""
        try:
            wanted = make(current)
        except SyncError as error:
            sys.stderr.write(f"{name}: {error}\n")
            failed = True
            continue
        if wanted == current:
            continue
        if arguments:
            sys.stderr.write(f"{name} is behind its source; run hack/sync_chart.py\n")
            failed = True
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted)
            sys.stderr.write(f"wrote {name}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
