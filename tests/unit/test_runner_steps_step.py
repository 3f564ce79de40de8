"""A step makes its artifact with the tools, leaves it whole or not at all, and says why not."""

from __future__ import annotations

import json
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.steps import PRODUCT, Volumes, json_of, report_of, tree, with_command

from shardwright.runner import gpus, versions
from shardwright.runner.contract import (
    ENV_REQUEST,
    MANIFEST,
    REASON_GPU_MISMATCH,
    REASON_KILLED,
    REASON_MANIFEST_MISMATCH,
    REASON_MANIFEST_MISSING,
    REASON_OUT_OF_MEMORY,
    REASON_TIMEOUT,
    REASON_TOOL_FAILED,
    REASON_UNKNOWN_FLAG,
    STORE,
    Also,
    StepRequest,
    artifact_key,
)
from shardwright.runner.steps import before
from shardwright.runner.steps.step import Step
from shardwright.runner.steps.stop import Stop
from shardwright_sandbox.player.files import folder_problem


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.make(tmp_path)


def nothing_counts(volumes: Volumes, request: StepRequest) -> bool:
    """No artifact and no temporary folder."""
    return not volumes.folder(request).exists() and volumes.temporary() == []


def test_a_checkpoint_is_published_whole_with_its_manifest(volumes: Volumes) -> None:
    request = volumes.checkpoint()
    report = volumes.run(request)
    assert (report.outcome, report.reason, report.reused) == ("Done", "", False)
    assert (report.step, report.key) == (request.step, request.key)
    names = {path.name for path in volumes.folder(request).iterdir()}
    assert names == {*request.expected_files, MANIFEST}
    manifest = volumes.manifest(request)
    assert manifest.inputs == request.inputs
    assert set(manifest.files) == set(request.expected_files)
    assert report.total_bytes == manifest.total_bytes
    assert manifest.gpu == {}
    assert volumes.temporary() == []


def test_the_layout_is_the_one_that_the_sandbox_checks(volumes: Volumes) -> None:
    request = volumes.with_checkpoint().engine()
    assert volumes.run(request).outcome == "Done"
    folder, manifest = volumes.folder(request), volumes.manifest(request)
    assert folder_problem(folder, manifest, request.step, request.key, 4) == ""


def test_an_engine_s_manifest_names_gpu_and_tools(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = (gpus.GPU(0, "NVIDIA H100 80GB HBM3", "9.0", "570.86.15"),)
    monkeypatch.setattr(before, "visible_gpus", lambda: seen)
    monkeypatch.setattr(versions.metadata, "version", lambda name: f"{name}-1")
    request = volumes.with_checkpoint().engine()
    report = volumes.run(request)
    manifest = volumes.manifest(request)
    assert manifest.gpu == {"product": PRODUCT, "compute": "9.0", "driver": "570.86.15"}
    assert manifest.tools["tensorrt_llm"] == "tensorrt_llm-1"
    assert report.tools == manifest.tools


def test_a_rerun_reports_what_is_there_and_runs_nothing(volumes: Volumes, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    request = volumes.checkpoint("--mark", str(mark))
    assert volumes.run(request).reused is False
    before_ = tree(volumes.places.store)
    report = volumes.run(request, "pod-2")
    assert (report.outcome, report.reused) == ("Done", True)
    assert len(mark.read_text().splitlines()) == 1
    assert tree(volumes.places.store) == before_


@pytest.mark.parametrize("lost", ["rank1.safetensors", MANIFEST, "config.json"])
def test_a_ruin_in_the_artifact_s_place_is_made_anew(volumes: Volumes, lost: str) -> None:
    request = volumes.checkpoint()
    volumes.run(request)
    whole = volumes.manifest(request)
    (volumes.folder(request) / lost).unlink()
    report = volumes.run(request, "pod-2")
    assert (report.outcome, report.reused) == ("Done", False)
    assert volumes.manifest(request).files == whole.files
    assert volumes.temporary() == []


def test_an_edited_configuration_is_noticed_although_its_size_is_the_same(volumes: Volumes) -> None:
    request = volumes.checkpoint()
    volumes.run(request)
    config = volumes.folder(request) / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"tp_size": 2', '"tp_size": 4'))
    assert volumes.run(request, "pod-2").reused is False
    assert config.read_text() == text


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--skip_rank", "3"), "1 of 5 files are missing or empty, first rank3.safetensors"),
        (("--cut_rank", "1"), "rank1.safetensors has 1064 bytes, its header describes 1074"),
        (("--bytes", "0", "--skip_rank", "0"), "first rank0.safetensors"),
    ],
)
def test_a_tool_that_ends_well_without_all_files_has_failed(
    volumes: Volumes, more: tuple[str, ...], told: str
) -> None:
    request = volumes.checkpoint(*more)
    report = volumes.run(request)
    assert (report.outcome, report.reason) == ("Permanent", REASON_TOOL_FAILED)
    assert "exit status 0" in report.message
    assert told in report.message
    assert nothing_counts(volumes, request)


def test_a_silent_failure_is_told_by_its_log(volumes: Volumes) -> None:
    said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.56 GiB."
    report = volumes.run(volumes.checkpoint("--skip_rank", "3", "--say", said))
    assert (report.outcome, report.reason) == ("Permanent", REASON_OUT_OF_MEMORY)
    assert said in report.message
    assert "rank3.safetensors" in report.message
    assert said in report.log_tail


def test_an_engine_of_another_shape_is_refused_with_the_exact_difference(volumes: Volumes) -> None:
    request = volumes.with_checkpoint().engine(made=(4, 1))
    report = volumes.run(request)
    assert (report.outcome, report.reason) == ("Permanent", REASON_TOOL_FAILED)
    assert "pretrained_config.mapping.tp_size is 4, asked for 2" in report.message
    assert "pretrained_config.mapping.pp_size is 1, asked for 2" in report.message
    assert nothing_counts(volumes, request)


def test_an_engine_with_ranks_of_a_larger_world_is_refused(volumes: Volumes) -> None:
    request = volumes.with_checkpoint().engine(made=(4, 2))
    report = volumes.run(request)
    assert "rank 4 are there, 4 ranks were asked for" in report.message
    assert nothing_counts(volumes, request)


@pytest.mark.parametrize("version", ["1.2.1.post2", "1.2.1+cu130"])
def test_a_build_of_the_same_version_is_taken(volumes: Volumes, version: str) -> None:
    report = volumes.with_checkpoint().run(volumes.engine("--version", version))
    assert report.outcome == "Done"


@pytest.mark.parametrize("version", ["1.2.1rc4", "1.1.0", "1.2.10", ""])
def test_an_engine_of_another_version_is_refused(volumes: Volumes, version: str) -> None:
    request = volumes.with_checkpoint().engine("--version", version)
    report = volumes.run(request)
    assert (report.outcome, report.reason) == ("Permanent", REASON_TOOL_FAILED)
    assert "version" in report.message
    assert nothing_counts(volumes, request)


def test_a_truncated_source_is_named_before_anything_runs(volumes: Volumes, tmp_path: Path) -> None:
    source = volumes.with_checkpoint().folder(volumes.checkpoint())
    rank = source / "rank2.safetensors"
    rank.write_bytes(rank.read_bytes()[:100])
    mark = tmp_path / "ran"
    request = volumes.engine("--mark", str(mark))
    report = volumes.run(request)
    assert (report.outcome, report.reason) == ("Environment", REASON_MANIFEST_MISMATCH)
    assert "rank2.safetensors is truncated: 100 bytes" in report.message
    assert not mark.exists()
    assert nothing_counts(volumes, request)


def test_heads_that_are_truncated_are_named_before_anything_runs(
    volumes: Volumes, tmp_path: Path
) -> None:
    heads = volumes.checkpoint(tensor=1, pipeline=1)
    volumes.run(heads)
    mark = tmp_path / "ran"
    request = replace(
        volumes.checkpoint("--mark", str(mark)),
        also=(Also(heads.step, heads.key, "read from the claim"),),
    )
    rank = volumes.folder(heads) / "rank0.safetensors"
    rank.write_bytes(rank.read_bytes()[:100])
    report = volumes.run(request)
    assert (report.outcome, report.reason) == ("Environment", REASON_MANIFEST_MISMATCH)
    assert report.key == heads.key
    assert "rank0.safetensors is truncated: 100 bytes" in report.message
    assert not mark.exists()
    assert nothing_counts(volumes, request)


def test_a_source_that_is_not_there_is_said_so(volumes: Volumes) -> None:
    report = volumes.run(volumes.engine())
    assert (report.outcome, report.reason) == ("Environment", REASON_MANIFEST_MISSING)
    no_model = replace(volumes.checkpoint(), source="/shardwright/source/none")
    report = volumes.run(no_model)
    assert (report.outcome, report.reason) == ("Environment", REASON_MANIFEST_MISSING)
    assert "config.json" in report.message


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"key": "0" * 16}, "operator and runner disagree"),
        ({"key": "../../../../etc"}, "16 hexadecimal digits"),
        ({"step": "model"}, "not made by tools"),
        ({"commands": ()}, "no command"),
        ({"expected_files": ()}, "expects no files"),
        ({"expected_files": ("../x",)}, "outside"),
        ({"source": "/etc"}, "neither below"),
        ({"source": "/shardwright/source/../../etc"}, "neither below"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    volumes: Volumes, change: dict[str, object], told: str
) -> None:
    request = replace(volumes.checkpoint(), **change)  # type: ignore[arg-type]
    report = volumes.run(request)
    assert report.outcome == "Environment"
    assert told in report.message
    assert volumes.temporary() == []


@pytest.mark.parametrize("uid", ["", "../up", "a/b", "x" * 64])
def test_a_pod_s_uid_cannot_name_another_folder(volumes: Volumes, uid: str) -> None:
    report = volumes.run(volumes.checkpoint(), uid)
    assert "malformed" in report.message
    assert volumes.temporary() == []


def test_inputs_that_do_not_match_the_files_are_refused(volumes: Volumes) -> None:
    inputs = {"model": "0" * 16, "tensor": 8, "pipeline": 2}
    request = replace(volumes.checkpoint(), inputs=inputs, key=artifact_key("checkpoint", inputs))
    assert "4 rank files are expected" in volumes.run(request).message


def test_a_tool_sees_its_folders_and_not_the_request(
    volumes: Volumes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_REQUEST, "{}")
    dump = volumes.root / "env.json"
    program = (
        "import json, os, sys; json.dump([sys.argv[1:], os.getcwd(), dict(os.environ)],"
        f"open({str(dump)!r}, 'w')); sys.exit(3)"
    )
    request = with_command(
        volumes.checkpoint(),
        *(sys.executable, "-c", program, "{out}/x", "{scratch}/y", '{"a": 1}'),
        env={"CACHE": "{scratch}/cache"},
    )
    report = volumes.run(request)
    assert "exit status 3" in report.message
    argv, cwd, env = json_of(dump)
    assert argv[0].endswith("/out/x")
    assert argv[1:] == [f"{volumes.places.scratch}/y", '{"a": 1}']
    assert cwd == str(volumes.places.scratch)
    assert env["CACHE"] == f"{volumes.places.scratch}/cache"
    assert ENV_REQUEST not in env


def test_a_flag_that_the_tool_does_not_know_is_for_good(volumes: Volumes) -> None:
    report = volumes.run(volumes.checkpoint("--tp_sise", "2"))
    assert (report.outcome, report.reason) == ("Permanent", REASON_UNKNOWN_FLAG)
    assert "unrecognized arguments: --tp_sise 2" in report.message
    assert "usage: tool" in report.log_tail


def test_a_tool_that_the_image_does_not_have_is_named(volumes: Volumes) -> None:
    report = volumes.run(with_command(volumes.checkpoint(), "trtllm-build-of-no-image"))
    assert (report.outcome, report.reason) == ("Permanent", REASON_TOOL_FAILED)
    assert "trtllm-build-of-no-image cannot be started" in report.message


def test_a_link_in_the_result_is_refused(volumes: Volumes) -> None:
    first = volumes.checkpoint()
    link = with_command(first, "ln", "-s", "/etc/passwd", "{out}/passwd").commands
    report = volumes.run(replace(first, commands=(*first.commands, *link)))
    assert "passwd is no regular file" in report.message
    assert nothing_counts(volumes, first)


def test_a_tool_that_is_killed_for_memory_names_the_limit_to_raise(volumes: Volumes) -> None:
    none = volumes.root / "no-cgroup"
    report = volumes.run(volumes.checkpoint("--signal", "9"), cgroup=none)
    assert (report.outcome, report.reason) == ("Environment", REASON_OUT_OF_MEMORY)
    assert "stepResources.memory" in report.message


def test_a_tool_that_is_killed_without_a_memory_kill_is_tried_again(volumes: Volumes) -> None:
    cgroup = volumes.root / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.events").write_text("low 0\noom 0\noom_kill 0\n")
    report = volumes.run(volumes.checkpoint("--signal", "9"), cgroup=cgroup)
    assert (report.outcome, report.reason) == ("Environment", REASON_KILLED)
    assert "SIGKILL" in report.message


def test_a_memory_kill_below_the_tool_is_seen(volumes: Volumes) -> None:
    """The tool survives its worker, and fails with words that do not tell why."""
    cgroup = volumes.root / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.events").write_text("oom_kill 2\n")
    (cgroup / "memory.max").write_text("68719476736\n")
    command = f"echo 'oom_kill 3' > {cgroup}/memory.events; echo worker died; exit 1"
    request = with_command(volumes.checkpoint(), "sh", "-c", command)
    report = volumes.run(request, cgroup=cgroup)
    assert (report.outcome, report.reason) == ("Environment", REASON_OUT_OF_MEMORY)
    assert "64.0 GiB" in report.message


def test_the_deadline_ends_the_tool_and_is_reported(volumes: Volumes) -> None:
    mark = volumes.root / "ran"
    program = f"echo building; echo x > {mark}; sleep 600"
    request = replace(with_command(volumes.checkpoint(), "sh", "-c", program), timeout_seconds=1)
    step = Step(request, "pod-1", volumes.places)
    # Its second passes when the tool has said something, however long that takes here.
    step._deadline += 3600

    def let_it_pass() -> None:
        wait_for(mark)
        step._deadline -= 3600

    with ThreadPoolExecutor(1) as pool:
        passed = pool.submit(let_it_pass)
        report = step.run()
        passed.result()
    assert (report.outcome, report.reason) == ("Environment", REASON_TIMEOUT)
    assert "more than 1 s" in report.message
    assert "building" in report.log_tail
    assert nothing_counts(volumes, request)


def test_a_tool_that_ignores_sigterm_is_killed(volumes: Volumes) -> None:
    program = "trap '' TERM; while :; do sleep 0.1; done"
    request = replace(with_command(volumes.checkpoint(), "sh", "-c", program), timeout_seconds=1)
    report = volumes.run(request, term_seconds=0.5)
    assert report.reason == REASON_TIMEOUT


def test_what_a_tool_leaves_running_is_ended_before_its_result_is_looked_at(
    volumes: Volumes,
) -> None:
    pids = volumes.root / "pids"
    first = volumes.checkpoint()
    # It holds the log open, and would go on writing into the artifact.
    child = f"(while :; do echo x >> {{out}}/config.json; sleep 0.05; done) & echo $! > {pids}"
    command = with_command(first, "sh", "-c", child).commands
    request = replace(first, commands=(*first.commands, *command))
    volumes.run(request)
    state = ""
    with suppress(FileNotFoundError, ProcessLookupError):
        state = Path(f"/proc/{int(pids.read_text())}/status").read_text()
    # Where nothing reaps orphans a zombie stays, which writes nothing any more.
    assert not state or "State:\tZ" in state


def test_a_pod_that_is_told_to_end_ends_its_tool_and_leaves_nothing(
    volumes: Volumes, tmp_path: Path
) -> None:
    mark, log = tmp_path / "ran", tmp_path / "log"
    request = volumes.checkpoint("--mark", str(mark), "--pause", "60")
    with volumes.process(request, "pod-1", log) as process:
        try:
            wait_for(mark)
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    report = report_of(log)
    assert (report.outcome, report.reason) == ("Environment", REASON_KILLED)
    assert "SIGTERM" in report.message
    assert nothing_counts(volumes, request)
    assert not Path(f"/proc/{mark.read_text().strip()}").exists()


def test_a_pod_that_was_told_to_end_before_it_began_runs_nothing(
    volumes: Volumes, tmp_path: Path
) -> None:
    stop = Stop()
    stop.set()
    mark = tmp_path / "ran"
    request = volumes.checkpoint("--mark", str(mark))
    assert volumes.run(request, stop=stop).reason == REASON_KILLED
    assert not mark.exists()
    assert nothing_counts(volumes, request)


def test_an_engine_is_not_built_on_another_gpu(
    volumes: Volumes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h200 = (gpus.GPU(0, "NVIDIA H200", "9.0", "570.86.15"),)
    mark = tmp_path / "ran"
    request = volumes.with_checkpoint().engine("--mark", str(mark))
    monkeypatch.setattr(before, "visible_gpus", lambda: h200)
    report = volumes.run(request)
    assert (report.outcome, report.reason) == ("Environment", REASON_GPU_MISMATCH)
    assert PRODUCT in report.message
    assert "NVIDIA-H200" in report.message
    monkeypatch.setattr(before, "visible_gpus", lambda: ())
    assert "sees no GPU" in volumes.run(request).message
    assert not mark.exists()


def test_a_claim_that_is_not_mounted_is_named(volumes: Volumes) -> None:
    volumes.places.store.rmdir()
    report = volumes.run(volumes.checkpoint())
    assert report.outcome == "Environment"
    assert "not mounted" in report.message


def test_a_checkpoint_in_hugging_face_form_needs_all_shards(volumes: Volumes) -> None:
    inputs = {"model": "0" * 16, "format": "hf"}
    index = json.dumps({"weight_map": {"a": "model-00001.safetensors", "b": "gone.safetensors"}})
    script = (
        "cd {out} && echo '{\"a\": 1}' | tee config.json > hf_quant_config.json"
        f" && echo '{index}' > model.safetensors.index.json"
        " && printf '\\002\\0\\0\\0\\0\\0\\0\\0{{}}' | sed 's/{{/{/;s/}}/}/' > "
        "model-00001.safetensors"
    )
    request = replace(
        with_command(volumes.checkpoint(), "sh", "-c", script),
        inputs=inputs,
        key=artifact_key("checkpoint", inputs),
        expected_files=("config.json", "hf_quant_config.json"),
    )
    report = volumes.run(request)
    assert "names gone.safetensors, which is not there" in report.message
    mended = script.replace("gone.safetensors", "model-00001.safetensors")
    commands = with_command(request, "sh", "-c", mended).commands
    assert volumes.run(replace(request, commands=commands)).outcome == "Done"


def wait_for(path: Path, seconds: float = 60) -> None:
    """Wait until a file is there and has something in it."""
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)


def test_calibration_data_that_are_not_on_the_claim_are_told_before_a_tool_runs(
    volumes: Volumes, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    program = f"import pathlib; pathlib.Path({str(mark)!r}).touch()"
    asked = volumes.checkpoint()
    named = with_command(
        asked, sys.executable, "-c", program, "--calib_dataset", f"{STORE}/calibration/requests"
    )
    report = volumes.run(named)
    assert (report.outcome, report.reason) == ("Permanent", "DatasetNotFound")
    assert "calibration/requests is not on the claim" in report.message
    assert not mark.exists()
    (volumes.places.store / "calibration/requests").mkdir(parents=True)
    assert volumes.run(named, "pod-2").reason == REASON_TOOL_FAILED  # it makes nothing
    assert mark.exists()


def test_calibration_data_that_a_tool_knows_by_name_are_none_of_the_claim_s(
    volumes: Volumes,
) -> None:
    named = with_command(
        volumes.checkpoint(), sys.executable, "-c", "", "--calib_dataset", "cnn_dailymail"
    )
    assert volumes.run(named).reason == REASON_TOOL_FAILED
