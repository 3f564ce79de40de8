"""A version that a spec leaves out: the one that its manifest had, else the one that serves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.golden import specs
from tests.support.played import World

from shardwright.api.asked import AskedSpec
from shardwright.api.engines import DEFAULT_VERSIONS, leaves_version_open
from shardwright.observe.world import RevisionView
from shardwright.plan.memory import recall
from shardwright.plan.revisions import Revision, dump, load, read, serving
from shardwright.plan.situation import Situation
from shardwright.plan.versions import with_kept_version

NEWEST = DEFAULT_VERSIONS["TensorRTLLM"]


def spec(version: str = "", runtime: str = "TensorRTLLM", **changes: Any) -> dict[str, Any]:
    """As a user writes it."""
    engine = {"runtime": runtime, **({"version": version} if version else {})}
    engine |= changes.pop("engine", {})
    return {
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct@main"},
        "gpu": {"product": specs.H100},
        "parallelism": {"tensor": 1, "pipeline": 1},
        "quantization": {"weights": "FP8" if runtime == "TensorRTLLM" else "None"},
        "storage": {"claimName": "models"},
        **changes,
        "engine": engine,
    }


class Applied(World):
    """Manifests are applied as they stand, and read as the operator reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.given = True

    def apply(self, raw: Mapping[str, Any]) -> str:
        """The revision that serves afterwards."""
        # What a watch delivers is what was written down.
        stored = [
            RevisionView(
                one.name, one.uid, 1, one.number, "uid", text=json.dumps(dump(one.resolved))
            )
            for one in sorted(self.revisions, key=lambda one: one.number)
        ]
        self.revisions = [read(view) for view in stored]
        kept = with_kept_version(raw, self.revisions, self.served)
        self.given = not leaves_version_open(raw)
        self.edit(**AskedSpec.read(kept).model_dump(mode="json", by_alias=True, exclude_none=True))
        assert self.served is not None
        return self.served.name

    def situation(self) -> Situation:
        return replace(super().situation(), version_given=self.given)

    @property
    def served(self) -> Revision | None:
        ordered = sorted(self.revisions, key=lambda one: one.number)
        return serving(ordered, self.records, recall(self.status, ()).rolled_back)

    @property
    def version(self) -> str:
        assert self.served is not None
        return self.served.resolved.spec.engine.version


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Applied:
    """An operator that recommended 1.1.0 served a manifest without a version; a newer one runs."""
    found = Applied()
    table = {**DEFAULT_VERSIONS, "TensorRTLLM": "1.1.0"}
    monkeypatch.setattr("shardwright.api.engines.DEFAULT_VERSIONS", table)
    found.apply(spec())
    assert found.version == "1.1.0"
    monkeypatch.undo()
    found.made.clear()
    return found


def test_a_manifest_that_is_applied_again_gets_its_own_revision_back(world: Applied) -> None:
    first = world.apply(spec())
    second = world.apply(spec(NEWEST))
    assert (second != first, world.version) == (True, NEWEST)
    world.made.clear()
    assert world.apply(spec()) == first
    assert (world.version, world.made) == ("1.1.0", [])


def test_the_newest_that_it_was_filled_in_for_goes_before_the_others(world: Applied) -> None:
    first = world.apply(spec())
    other = world.apply(spec(replicas=1, engine={"limits": {"maxBatchSize": 8}}))
    world.apply(spec(NEWEST, engine={"limits": {"maxBatchSize": 8}}))
    assert world.apply(spec(engine={"limits": {"maxBatchSize": 8}})) == other
    assert world.apply(spec()) == first


def test_a_new_wish_keeps_the_version_that_serves(world: Applied) -> None:
    world.apply(spec(pod={"env": [{"name": "X", "value": "1"}]}))
    assert (world.version, world.made) == ("1.1.0", []), "an upgrade of the operator rebuilt"
    assert world.served is not None
    assert world.served.resolved.version_given is False


def test_a_revision_that_never_served_gives_no_version(world: Applied) -> None:
    first = world.revisions[-1]
    broken = replace(first.resolved, spec=AskedSpec.read(spec(NEWEST)).filled(), version_given=True)
    newer = Revision("llama-newer", "uid-newer", 2, broken)
    found = with_kept_version(spec(replicas=3, gpu={"product": "H200"}), [first, newer], first)
    assert found["engine"]["version"] == "1.1.0"
    # Before anything serves, what was asked for last.
    found = with_kept_version(spec(gpu={"product": "H200"}), [first, newer], None)
    assert found["engine"]["version"] == NEWEST


def test_a_version_that_is_taken_out_of_a_manifest_changes_nothing(world: Applied) -> None:
    before = world.apply(spec("1.2.0", engine={"limits": {"maxBatchSize": 8}}))
    world.made.clear()
    assert world.apply(spec(engine={"limits": {"maxBatchSize": 8}})) == before
    assert (world.version, world.made) == ("1.2.0", [])


@pytest.mark.parametrize(
    ("raw", "version"),
    [
        ({}, "1.1.0"),
        ({"engine": None}, "1.1.0"),
        ({"engine": {"limits": {"maxBatchSize": 8}}}, "1.1.0"),
        ({"engine": {"version": "1.2.0"}}, "1.2.0"),
        ({"engine": {"runtime": "VLLM"}}, None),
        ({"engine": "nonsense"}, None),
    ],
)
def test_a_spec_as_written_is_left_alone(
    world: Applied, raw: dict[str, Any], version: str | None
) -> None:
    written = json.loads(json.dumps(raw))
    found = with_kept_version(raw, world.revisions, world.served)
    engine = found.get("engine")
    assert (engine.get("version") if isinstance(engine, dict) else None) == version
    assert raw == written, "what the store holds must not change"
    assert with_kept_version(raw, (), None) is raw


def test_another_runtime_and_back_finds_the_first_revision(world: Applied) -> None:
    first = world.apply(spec())
    world.apply(spec(runtime="VLLM"))
    assert world.version == DEFAULT_VERSIONS["VLLM"]
    world.made.clear()
    assert world.apply(spec()) == first
    assert (world.version, world.made) == ("1.1.0", [])


def test_the_image_of_a_kept_version_is_kept_too(world: Applied) -> None:
    """A table of images that has changed meanwhile rebuilds nothing either."""
    (first,) = world.revisions
    world.apply(spec(NEWEST))
    images = {"TensorRTLLM/1.1.0": "mirror.example.com/trtllm:1.1.0"}
    world.settings = world.settings.model_copy(update={"images": images})
    world.made.clear()
    world.apply(spec("1.1.0", pod={"env": [{"name": "X", "value": "1"}]}))
    assert world.served is not None
    assert (world.served.resolved.image, world.made) == (first.resolved.image, [])


def test_data_of_an_earlier_operator_are_read(world: Applied) -> None:
    (first,) = world.revisions
    data = dump(first.resolved)
    assert data["versionGiven"] is False
    del data["versionGiven"]
    old = replace(first, resolved=load(data))
    assert old.resolved.version_given is None
    assert "versionGiven" not in dump(old.resolved)
    assert with_kept_version(spec(), [old], old)["engine"]["version"] == "1.1.0"
