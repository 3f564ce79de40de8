"""The objects of three deployments, kept whole in tests/golden; UPDATE_GOLDEN=1 writes them anew.

A change of a golden file is a change of what runs in clusters: read it. A change of `keys.yaml` is
more: every artifact of that kind would be rebuilt, everywhere, at the operator's upgrade.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.golden import specs

from shardwright.render.jobs import step_job
from shardwright.render.pods import group_pods
from shardwright.render.services import disruption_budget, leader_service, ranks_service
from shardwright.runner.contract import artifact_key

FOLDER = Path(__file__).parents[1] / "golden"
RUNNER = "shardwright-runner-0123456789"


def objects(name: str) -> list[dict[str, Any]]:
    found = specs.resolved(*specs.EXAMPLES[name])
    owner = specs.owner(name)
    return [
        ranks_service("llm", owner),
        leader_service("llm", owner),
        disruption_budget("llm", owner, minimum_available=found.pipeline),
        *(
            step_job(
                artifact,
                attempt=1,
                owners=[owner],
                spec=found.spec,
                claim=specs.CLAIM,
                settings=specs.SETTINGS,
                runner_config_map=RUNNER,
            )
            for artifact in found.artifacts
        ),
        *group_pods(found, specs.identity(name), RUNNER),
    ]


def compare(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name}: run with UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", specs.EXAMPLES)
def test_rendered_objects_are_the_kept_ones(name: str) -> None:
    text = yaml.safe_dump_all(objects(name), sort_keys=False, width=100, allow_unicode=True)
    compare(FOLDER / f"{name}.yaml", text)


def test_keys_are_the_kept_ones() -> None:
    keys = {}
    for name, example in specs.EXAMPLES.items():
        found = specs.resolved(*example)
        keys[name] = {
            **{artifact.step: artifact.key for artifact in found.artifacts},
            "proof": found.proof_key,
        }
    compare(FOLDER / "keys.yaml", yaml.safe_dump(keys, sort_keys=False))


def test_a_new_input_at_its_neutral_value_keeps_old_keys() -> None:
    for example in specs.EXAMPLES.values():
        for artifact in specs.resolved(*example).artifacts:
            assert artifact_key(artifact.step, {**artifact.inputs, "new": None}) == artifact.key
            assert artifact_key(artifact.step, {**artifact.inputs, "new": 1}) != artifact.key
