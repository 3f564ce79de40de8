"""The fake `nvidia-smi` and the GPUs behind it; faults by control file."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from shardwright_standin import faults, gpu
from tests.standin.running import Machine

QUERY = "--query-gpu=index,name,uuid,compute_cap,memory.total,driver_version"


def test_the_container_s_devices_are_renumbered_and_told_apart_by_uuid(machine: Machine) -> None:
    first = machine.good("nvidia-smi", "-L", NVIDIA_VISIBLE_DEVICES="2,5").splitlines()
    assert [line.split(" (")[0] for line in first] == [
        "GPU 0: NVIDIA H100 80GB HBM3",
        "GPU 1: NVIDIA H100 80GB HBM3",
    ]
    again = machine.good("nvidia-smi", "-L", NVIDIA_VISIBLE_DEVICES="5").splitlines()
    assert again[0].split("UUID")[1] == first[1].split("UUID")[1]
    other = machine.good(
        "nvidia-smi", "-L", NVIDIA_VISIBLE_DEVICES="5", SHARDWRIGHT_NODE_NAME="other"
    )
    assert other.split("UUID")[1] != again[0].split("UUID")[1]


def test_a_query_answers_in_the_order_asked(machine: Machine) -> None:
    rows = machine.good("nvidia-smi", QUERY, "--format=csv,noheader").splitlines()
    assert len(rows) == 4
    assert rows[3].startswith("3, NVIDIA H100 80GB HBM3, GPU-")
    assert rows[3].endswith(", 9.0, 81559 MiB, 580.95.05")
    out = machine.good(
        "nvidia-smi",
        "--query-gpu=memory.total",
        "--format=csv",
        "-i",
        "0",
        SHARDWRIGHT_STANDIN_GPU_PRODUCT="NVIDIA-A100-SXM4-80GB",
    )
    assert out.splitlines() == ["memory.total [MiB]", "81920 MiB"]


def test_the_topology_matrix_holds_the_links_that_were_asked_for(machine: Machine) -> None:
    text = machine.good(
        "nvidia-smi",
        "topo",
        "-m",
        NVIDIA_VISIBLE_DEVICES="0,1",
        SHARDWRIGHT_STANDIN_LINK="PHB",
        SHARDWRIGHT_STANDIN_NICS="mlx5_0",
    )
    lines = [line.split("\t") for line in text.splitlines()[:4]]
    assert lines[0][1:] == ["GPU0", "GPU1", "NIC0", "CPU Affinity", "NUMA Affinity"]
    assert lines[1][:4] == ["GPU0", "X", "PHB", "PIX"]
    assert lines[2][:4] == ["GPU1", "PHB", "X", "SYS"]
    assert lines[3] == ["NIC0", "PIX", "SYS", "X"]
    assert "NIC0: mlx5_0" in text


@pytest.mark.parametrize(
    ("words", "changes", "code", "said"),
    [
        (["-L"], {"NVIDIA_VISIBLE_DEVICES": "void"}, 9, "couldn't communicate with the NVIDIA dri"),
        (["--query-gpu=colour", "--format=csv"], {}, 2, 'Field "colour" is not a valid field'),
        (["--query-gpu=name"], {}, 2, "Invalid combination of input arguments"),
        (["--query-gpu=name", "--format=csv", "-i", "7"], {}, 6, "No devices were found"),
        (["-L"], {"NVIDIA_VISIBLE_DEVICES": "9"}, 2, "names GPU 9; the node has 8"),
    ],
)
def test_it_fails_with_the_real_tool_s_codes(
    words: list[str], changes: dict[str, str], code: int, said: str, machine: Machine
) -> None:
    done = machine.run("nvidia-smi", *words, **changes)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_a_product_that_is_not_known_needs_its_compute_capability() -> None:
    asked = {gpu.VISIBLE: "0", gpu.PRODUCT: "NVIDIA-GB300"}
    with pytest.raises(gpu.GPUError, match=gpu.COMPUTE):
        gpu.visible(asked)
    (one,) = gpu.visible({**asked, gpu.COMPUTE: "10.3"})
    assert (one.name, one.compute) == ("NVIDIA GB300", "10.3")


@pytest.mark.parametrize("asked", ["", "none", "void"])
def test_without_devices_there_are_none(asked: str) -> None:
    assert gpu.visible({gpu.VISIBLE: asked}) == ()
    assert len(gpu.visible({gpu.VISIBLE: "all", gpu.COUNT: "4"})) == 4


# --- faults ---


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "faults.yaml"
    monkeypatch.setenv(faults.CONTROL, str(path))
    monkeypatch.setenv("SHARDWRIGHT_NODE_NAME", "node-a")
    return path


def rule(**fields: object) -> str:
    return str({"rules": [{"id": "it", "at": "step", "act": "disk_full", **fields}]})


def struck(one: faults.Faults, point: str = "step") -> bool:
    try:
        one.reach(point)
    except OSError as error:
        return error.errno == errno.ENOSPC
    return False


def test_a_fault_strikes_only_where_and_when_it_was_asked_for(control: Path) -> None:
    own = faults.Faults(program="trtllm-serve", rank=3, stage=1)
    assert not struck(own), "without a file nothing happens"
    control.write_text(rule(where={"rank": 3, "node": "node-*"}))
    assert struck(own)
    assert not struck(own, "load")
    assert not struck(faults.Faults(program="trtllm-serve", rank=2))
    assert not struck(faults.Faults(program="trtllm-build")), "it has no rank"
    control.write_text(rule(where={"stage": 0}))
    assert not struck(own)


def test_a_fault_may_wait_for_a_number_of_passes(control: Path) -> None:
    control.write_text(rule(after=2))
    own = faults.Faults()
    assert [struck(own) for _ in range(4)] == [False, False, True, True]


def test_a_fault_s_times_are_counted_over_all_processes(control: Path) -> None:
    control.write_text(rule(times=2))
    assert [struck(faults.Faults()) for _ in range(4)] == [True, True, False, False]


def test_what_is_held_goes_on_when_the_file_has_no_such_rule_any_more(control: Path) -> None:
    control.write_text(rule(act="hold"))
    held = threading.Thread(target=faults.Faults().reach, args=("step",), daemon=True)
    held.start()
    held.join(0.3)
    assert held.is_alive()
    control.unlink()
    held.join(60)
    assert not held.is_alive()


def test_a_full_gpu_is_an_exception_in_torch_s_words(control: Path) -> None:
    control.write_text(rule(act="gpu_oom"))
    with pytest.raises(faults.OutOfMemoryError, match="CUDA out of memory"):
        faults.Faults().reach("step")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rules: [{at: step, act: explode}]", "act 'explode' one of"),
        ("rules: [{at: later, act: hang}]", "at 'later' must be one of"),
        ("rules: [{at: step, act: hang, when: 3}]", "unknown key when"),
        ("rules: [{at: step, act: hang, where: {colour: red}}]", "unknown key colour"),
        ("hang: true", "no list under 'rules'"),
    ],
)
def test_a_control_file_with_something_unknown_is_refused(
    text: str, complaint: str, control: Path
) -> None:
    control.write_text(text)
    with pytest.raises(faults.FaultRuleError, match=complaint):
        faults.Faults().reach("start")


@pytest.mark.parametrize(("act", "code"), [("exit", 7), ("oom", 137)])
def test_a_step_s_tool_ends_as_asked(
    act: str, code: int, machine: Machine, model: Path, tmp_path: Path
) -> None:
    control = tmp_path / "faults.yaml"
    control.write_text(str({"rules": [{"at": "start", "act": act, "code": 7}]}))
    script = "/app/tensorrt_llm/examples/models/core/llama/convert_checkpoint.py"
    done = machine.run(
        "python3",
        script,
        "--model_dir",
        str(model),
        "--output_dir",
        "out",
        **{faults.CONTROL: str(control)},
    )
    assert (done.returncode if done.returncode >= 0 else 128 - done.returncode) == code
    assert not (tmp_path / "out").exists()
    assert f"fault rule-0: {act}" in done.stderr
