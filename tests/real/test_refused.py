"""Artifacts that were tampered with: refused before they are loaded, told, and made again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.real.site import Site
from tests.support.kube import Json
from tests.support.operator import Operator
from tests.support.watcher import Mark, Watcher, watching

from shardwright.api import names
from shardwright.render.common import USER_ID
from shardwright.runner.contract import (
    MANIFEST,
    Manifest,
    artifact_folder,
    artifact_key,
    decode,
    encode,
)
from shardwright.runner.verify import Wanted, check

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

H200 = "NVIDIA-H200"


@dataclass(frozen=True)
class Engine:
    """A deployment's engine on the claim."""

    key: str
    folder: Path
    inputs: Json

    @property
    def manifest(self) -> Manifest:
        return decode(Manifest, (self.folder / MANIFEST).read_text())


def engine_of(site: Site, name: str) -> Engine:
    """What the deployment is built for, at zero replicas: the newest engine of its status."""
    status = site.kube.get(name)["status"]["engine"]
    key = (status.get("serving") or {}).get("key") or status["next"]["key"]
    folder = site.claim / artifact_folder("engine", key)
    return Engine(key, folder, decode(Manifest, (folder / MANIFEST).read_text()).inputs)


def put(source: Path, target: Engine) -> None:
    """Place a copy of a folder where an engine is, as the user that all pods run as."""
    shutil.rmtree(target.folder)
    shutil.copytree(source, target.folder)
    for path in (target.folder, *target.folder.rglob("*")):
        os.chown(path, USER_ID, USER_ID)


def told_while_made_again(watcher: Watcher, mark: Mark, name: str) -> set[str]:
    """What EngineReady has said while the engine was made again."""
    return {
        str(one["message"])
        for found in watcher.objects_since(mark, name)
        for one in found.get("status", {}).get("conditions", [])
        if (one["type"], one["reason"]) == ("EngineReady", "Building")
    }


def rebuilds(site: Site, engine: Engine) -> int:
    """How often the engine's record says that its files were found bad."""
    label = f"{names.LABEL_KEY}={engine.key},{names.LABEL_STEP}=engine"
    listed = site.kube.raw(
        f"/api/v1/namespaces/{site.kube.namespace}/configmaps", labelSelector=label
    )
    (record,) = listed["items"]
    return int(record["data"]["rebuilds"])


def cut(_site: Site, mine: Engine) -> str:
    """A rank file that was not written to its end."""
    path = mine.folder / "rank1.engine"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 100)
    return f"rank1.engine is truncated: {size - 100} bytes, the manifest says {size}"


def of_another_shape(site: Site, mine: Engine) -> str:
    put(engine_of(site, "stages").folder, mine)
    return "the engine's tp_size is 1, the group's is 2"


def of_another_version(site: Site, mine: Engine) -> str:
    put(engine_of(site, "older").folder, mine)
    return "version is '1.1.0', asked for '1.2.1'"


def for_another_gpu(_site: Site, mine: Engine) -> str:
    """As it comes from a cluster with H200, whose compute capability is the same."""
    inputs = {**mine.inputs, "product": H200}
    there = replace(
        mine.manifest,
        key=artifact_key("engine", inputs),
        inputs=inputs,
        gpu={**mine.manifest.gpu, "product": H200},
    )
    (mine.folder / MANIFEST).write_text(encode(there))
    return f"product is '{H200}', asked for 'NVIDIA-H100-80GB-HBM3'"


CASES: dict[str, Callable[[Site, Engine], str]] = {
    "cut": cut,
    "shape": of_another_shape,
    "version": of_another_version,
    "gpu": for_another_gpu,
}


def test_a_wrong_engine_is_refused_before_it_is_loaded_and_made_again(
    running: Operator, site: Site
) -> None:
    # Engines of their own, from one model and one checkpoint.
    for number, name in enumerate(CASES):
        limits = {"maxBatchSize": 4 + number}
        site.create(name, 2, 1, replicas=0, engine={"limits": limits})
    site.create("stages", 1, 2, replicas=0)
    site.create("older", 2, 1, replicas=0, engine={"version": "1.1.0"})
    for name in (*CASES, "stages", "older"):
        site.ready(name)

    engines = {name: engine_of(site, name) for name in CASES}
    assert len({engine.key for engine in engines.values()}) == len(CASES)
    told = {name: tamper(site, engines[name]) for name, tamper in CASES.items()}
    with watching(site.sandbox.api, site.kube.namespace) as watcher:
        mark = watcher.mark()
        for name in CASES:
            site.kube.edit(name, {"replicas": 1})
        for name in CASES:
            site.ready(name)
        said = {name: told_while_made_again(watcher, mark, name) for name in CASES}
    for name, words in told.items():
        assert any(words in one for one in said[name]), said[name]
    for name, engine in engines.items():
        manifest = check(engine.folder, Wanted("engine", engine.key, 2), hash_up_to=None)
        assert manifest.inputs == engine.inputs
        assert manifest.tools == {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48"}
        (leader,) = site.leaders(name)
        assert site.wrong_answers(leader) == []
        # Refused once, by the first check: an engine that had been loaded would have died of it.
        assert rebuilds(site, engine) == 1
