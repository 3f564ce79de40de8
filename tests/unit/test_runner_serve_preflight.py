"""What is refused before anything is loaded, and who is blamed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runner.serve_world import engine_artifact
from tests.support.serving import REQUEST

from shardwright.runner.contract import (
    ARTIFACT_FAULTS,
    MANIFEST,
    NODE_FAULTS,
    Also,
    Command,
    FileEntry,
    Manifest,
    ServeRequest,
    artifact_folder,
    artifact_key,
    encode,
)
from shardwright.runner.gpus import GPU
from shardwright.runner.serve.places import Places
from shardwright.runner.serve.preflight import artifact_problem, node_problem, tools_problem
from shardwright.runner.serve.prepare import order, write_files
from shardwright.runner.serve.start import _refused
from shardwright.runner.verify import sha256_of

H100 = GPU(0, "NVIDIA H100 80GB HBM3", "9.0", "580.95.05")


def request(folder: Path, key: str, artifact: Path, **changes: Any) -> ServeRequest:
    made = replace(
        REQUEST,
        key=key,
        artifact=str(artifact),
        model_folder=str(folder / "model"),
        served_name="llama",
        product="NVIDIA-H100-80GB-HBM3",
        config={"max_batch_size": 8},
        peers=("m-0.ranks.ns.svc", "m-1.ranks.ns.svc"),
    )
    return replace(made, **changes)


@pytest.fixture
def good(tmp_path: Path) -> ServeRequest:
    key, artifact = engine_artifact(tmp_path / "store", 2, 2)
    return request(tmp_path, key, artifact)


def rewrite(asked: ServeRequest, **changes: Any) -> None:
    """Change the manifest's word of a file after it was made by hand."""
    path = Path(asked.artifact) / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def problem(asked: ServeRequest, store: Path) -> tuple[str, str]:
    found = artifact_problem(asked, store)
    assert found is not None
    assert found.outcome == "Permanent"
    assert found.reason in ARTIFACT_FAULTS
    return found.reason, found.message


def test_a_good_engine_is_loaded(good: ServeRequest, tmp_path: Path) -> None:
    assert artifact_problem(good, tmp_path) is None


def test_a_truncated_rank_file_is_named_with_both_sizes(good: ServeRequest, tmp_path: Path) -> None:
    path = Path(good.artifact) / "rank3.engine"
    path.write_bytes(path.read_bytes()[:100])
    reason, message = problem(good, tmp_path)
    assert reason == "ManifestMismatch"
    assert "rank3.engine is truncated: 100 bytes" in message


def test_a_missing_rank_file_is_named(good: ServeRequest, tmp_path: Path) -> None:
    (Path(good.artifact) / "rank1.engine").unlink()
    assert "rank1.engine is missing" in problem(good, tmp_path)[1]


def test_a_folder_without_a_manifest_is_not_loaded(good: ServeRequest, tmp_path: Path) -> None:
    (Path(good.artifact) / MANIFEST).unlink()
    assert problem(good, tmp_path)[0] == "ManifestMissing"


def test_an_engine_of_another_key_is_refused(good: ServeRequest, tmp_path: Path) -> None:
    other = replace(good, key="f" * 16)
    assert f"asked for engine {'f' * 16}" in problem(other, tmp_path)[1]


def test_an_engine_of_another_key_is_refused_with_every_difference(
    good: ServeRequest, tmp_path: Path
) -> None:
    wanted = {"version": "1.2.1", "limits": {"maxSeqLen": 8, "maxBatchSize": 4}, "workers": 1}
    inputs = {"version": "1.1.0", "limits": {"maxSeqLen": 9, "maxBatchSize": 4}, "product": "L4"}
    other = replace(good, key=artifact_key("engine", wanted), inputs=wanted, tensor=4, pipeline=1)
    key = artifact_key("engine", inputs)
    rewrite(good, inputs=inputs, key=key)
    assert problem(other, tmp_path)[1] == (
        f"{Path(good.artifact).name}: manifest is of engine {key}, asked for engine {other.key}; "
        "product is 'L4', asked for None; version is '1.1.0', asked for '1.2.1'; "
        "limits.maxSeqLen is 9, asked for 8; workers is None, asked for 1; "
        "the engine's tp_size is 2, the group's is 4"
    )


def test_an_engine_that_was_built_on_another_gpu_is_no_fault_of_the_node(
    good: ServeRequest, tmp_path: Path
) -> None:
    rewrite(good, gpu={"product": "NVIDIA-H200", "compute": "9.0"})
    said = "the engine was built for NVIDIA-H200, spec.gpu.product is NVIDIA-H100-80GB-HBM3"
    assert problem(good, tmp_path) == ("ManifestMismatch", said)
    rewrite(good, gpu={"product": "NVIDIA-H100-80GB-HBM3", "compute": "9.0"})
    assert artifact_problem(good, tmp_path) is None
    # A cloud's label may name several kinds of board: of which this one is, the node tells.
    rewrite(good, gpu={"product": "NVIDIA-H100-PCIe", "compute": "9.0"})
    assert artifact_problem(replace(good, product="nvidia-h100-80gb"), tmp_path) is None


def test_an_engine_of_another_shape_placed_under_this_key_is_refused(
    good: ServeRequest, tmp_path: Path
) -> None:
    path = Path(good.artifact) / "config.json"
    mapping = {"world_size": 4, "tp_size": 4, "pp_size": 1}
    path.write_text(json.dumps({"pretrained_config": {"mapping": mapping}}))
    entry = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    files = json.loads((Path(good.artifact) / MANIFEST).read_text())["files"]
    rewrite(good, files={**files, "config.json": entry})
    assert problem(good, tmp_path) == (
        "ManifestMismatch",
        "the engine's tp_size is 4, the group's is 2",
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"pretrained_config": {"mapping": {}}}', "[" * 9999]
)
def test_a_config_that_names_no_shape_is_refused(
    good: ServeRequest, tmp_path: Path, text: str
) -> None:
    path = Path(good.artifact) / "config.json"
    path.write_text(text)
    files = json.loads((Path(good.artifact) / MANIFEST).read_text())["files"]
    entry = {"size": path.stat().st_size, "sha256": sha256_of(path)}
    rewrite(good, files={**files, "config.json": entry})
    assert "names no pretrained_config.mapping" in problem(good, tmp_path)[1]


def test_a_users_own_model_has_its_manifest_in_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    inputs = {"uri": "pvc://models/llama"}
    key = artifact_key("model", inputs)
    asked = request(tmp_path, key, folder, step="model")
    assert problem(asked, tmp_path / "store")[0] == "ManifestMissing"
    kept = tmp_path / "store" / artifact_folder("model", key)
    kept.mkdir(parents=True)
    manifest = Manifest("model", key, inputs, {"config.json": FileEntry(2, "0" * 64)})
    (kept / MANIFEST).write_text(encode(manifest))
    assert artifact_problem(asked, tmp_path / "store") is None


@pytest.mark.parametrize(
    ("gpus", "built_for", "reason", "words"),
    [
        ((H100, H100), {}, "", ""),
        (
            (H100, H100),
            {"product": "NVIDIA-H100-80GB-HBM3", "compute": "9.0", "driver": "580.65.06"},
            "",
            "",
        ),
        ((H100, H100), {"driver": "570.1"}, "", ""),
        (None, {"product": "NVIDIA-L40S"}, "", ""),
        ((H100,), {}, "WorldMismatch", "sees 1 GPUs, its stage has 2 tensor ranks"),
        ((), {}, "WorldMismatch", "sees 0 GPUs"),
        (
            (H100, replace(H100, index=1, name="NVIDIA H200")),
            {},
            "GPUMismatch",
            "GPU 1 is an NVIDIA H200, spec.gpu.product is NVIDIA-H100-80GB-HBM3",
        ),
        (
            (H100, H100),
            {"product": "NVIDIA-H200"},
            "GPUMismatch",
            "built for NVIDIA-H200, GPU 0 is an NVIDIA H100 80GB HBM3",
        ),
        (
            (H100, H100),
            {"compute": "8.9"},
            "GPUMismatch",
            "built for compute capability 8.9, GPU 0 (NVIDIA H100 80GB HBM3) has 9.0",
        ),
        (
            (H100, H100),
            {"driver": "590.10"},
            "GPUMismatch",
            "under driver 590.10, this node's is 580.95.05, older",
        ),
    ],
)
def test_what_the_node_must_have(
    good: ServeRequest,
    gpus: tuple[GPU, ...] | None,
    built_for: dict[str, str],
    reason: str,
    words: str,
) -> None:
    found = node_problem(good, built_for, gpus)
    if not reason:
        assert found is None
        return
    assert found is not None
    assert found.reason == reason
    assert found.reason in NODE_FAULTS
    assert words in found.message


def test_an_engine_of_another_tensorrt_is_made_again_and_other_tools_do_not_matter() -> None:
    here = {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1", "torch": "2.9.1"}
    assert (
        tools_problem({"tensorrt_llm": "1.2.1", "torch": "2.8.0", "modelopt": "0.4"}, here) is None
    )
    assert tools_problem({"tensorrt": "10.13"}, {}) is None
    found = tools_problem({"tensorrt": "10.13.3"}, here)
    assert found is not None
    assert found.reason == "ManifestMismatch"
    assert found.message == "the engine was made by tensorrt 10.13.3, this image has 10.14.1"


def test_placeholders_are_filled_and_other_braces_stay(good: ServeRequest, tmp_path: Path) -> None:
    asked = replace(
        good,
        command=Command(
            "vllm",
            (
                *("vllm", "serve", "{scratch}/served/llama", "--tokenizer", "{model}"),
                *("--nnodes", "{stages}", "--node-rank", "{stage}", "--master-addr", "{leader}"),
                *("--speculative-config", '{"method":"ngram"}'),
            ),
            {"CACHE": "{scratch}/cache"},
        ),
    )
    found = order(asked, Places(scratch=str(tmp_path)), {})
    assert found["argv"][2:] == [
        f"{tmp_path}/served/llama",
        "--tokenizer",
        f"{tmp_path}/model",
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--master-addr",
        "m-0.ranks.ns.svc",
        "--speculative-config",
        '{"method":"ngram"}',
    ]
    assert found["env"]["CACHE"] == f"{tmp_path}/cache"


@pytest.mark.parametrize(
    ("environment", "added"),
    [({}, True), ({"NCCL_DEBUG": "WARN"}, False)],
)
def test_nccl_tells_its_ways_unless_somebody_set_its_level(
    good: ServeRequest, environment: dict[str, str], added: bool
) -> None:
    found = order(good, Places(), environment)["env"]
    assert ("NCCL_DEBUG" in found) is added


def test_the_server_finds_the_artifact_under_the_served_name_and_its_configuration(
    good: ServeRequest, tmp_path: Path
) -> None:
    places = Places(scratch=str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    for _ in range(2):  # a second container of the pod finds the first one's link
        write_files(replace(good, served_name="org/llama"), places)
    link = tmp_path / "scratch/served/org/llama"
    assert link.resolve() == Path(good.artifact)
    assert json.loads((tmp_path / "scratch/config.yaml").read_text()) == {"max_batch_size": 8}


@pytest.mark.parametrize("name", ["", "../x", "/etc/x", "a/../../x"])
def test_a_served_name_never_leaves_its_folder(
    good: ServeRequest, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match="choose another"):
        write_files(replace(good, served_name=name), Places(scratch=str(tmp_path)))
    assert not (tmp_path.parent / "x").exists()


@pytest.fixture
def drafted(good: ServeRequest, tmp_path: Path) -> ServeRequest:
    """The same with a draft model beside it."""
    inputs = {"uri": "hf://org/draft"}
    key = artifact_key("model", inputs)
    folder = tmp_path / "store" / artifact_folder("model", key)
    folder.mkdir(parents=True)
    weights = folder / "model.safetensors"
    weights.write_bytes(b"w" * 300)
    entry = FileEntry(300, sha256_of(weights))
    made = Manifest("model", key, inputs, {weights.name: entry})
    (folder / MANIFEST).write_text(encode(made))
    return replace(good, also=(Also("model", key, str(folder), inputs),))


def test_a_good_draft_is_loaded_beside_its_model(drafted: ServeRequest, tmp_path: Path) -> None:
    assert artifact_problem(drafted, tmp_path / "store") is None


@pytest.mark.parametrize("name", ["model.safetensors", MANIFEST])
def test_a_bad_draft_is_told_by_its_own_key(
    drafted: ServeRequest, tmp_path: Path, name: str
) -> None:
    (also,) = drafted.also
    (Path(also.artifact) / name).unlink()
    found = artifact_problem(drafted, tmp_path / "store")
    assert found is not None
    assert (found.step, found.key) == ("model", also.key)
    assert found.reason in ARTIFACT_FAULTS
    report = _refused(drafted, found)
    assert (report.step, report.key) == ("model", also.key)


def test_a_draft_that_lies_elsewhere_has_its_manifest_in_the_store(
    drafted: ServeRequest, tmp_path: Path
) -> None:
    (also,) = drafted.also
    elsewhere = tmp_path / "source" / "draft"
    elsewhere.mkdir(parents=True)
    moved = replace(drafted, also=(replace(also, artifact=str(elsewhere)),))
    assert artifact_problem(moved, tmp_path / "store") is None
    (Path(also.artifact) / MANIFEST).unlink()
    assert artifact_problem(moved, tmp_path / "store") is not None


def test_a_bad_engine_is_told_before_its_draft_and_by_its_own_key(
    drafted: ServeRequest, tmp_path: Path
) -> None:
    (Path(drafted.artifact) / "rank1.engine").unlink()
    found = artifact_problem(drafted, tmp_path / "store")
    assert found is not None
    report = _refused(drafted, found)
    assert (report.step, report.key) == (drafted.step, drafted.key)
