"""Every known way in which a tool fails has its outcome and reason, and a message with a fix."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.steps import Volumes, with_command

from shardwright.runner.contract import (
    REASON_ACCESS_DENIED,
    REASON_DISK_FULL,
    REASON_GPU_MISMATCH,
    REASON_KILLED,
    REASON_NETWORK,
    REASON_OUT_OF_MEMORY,
    REASON_TIMEOUT,
    REASON_TOOL_FAILED,
    REASON_UNKNOWN_FLAG,
    REASON_UNSUPPORTED_GPU,
    TERMINATION_LIMIT_BYTES,
    Report,
    decode,
    encode,
    encode_report,
)
from shardwright.runner.steps.around import MemoryWatch
from shardwright.runner.steps.classify import Surroundings, classify
from shardwright.runner.steps.excerpt import with_tail
from shardwright.runner.steps.failure import storage_cause
from shardwright.runner.steps.tool import Ending

FREE = (("the claim", 5 * 2**30), ("scratch", 0))
NO_KILLS = Surroundings(oom_kills=0, free=FREE)

# Last lines of logs as people have reported them, shortened; where from stands beside each.
LOGS = {
    # NVIDIA/TensorRT-LLM#346
    "trt-oom": """\
[11/10/2023-06:30:40] [TRT] [E] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: \
OutOfMemory (no further information)
[11/10/2023-06:30:40] [TRT] [W] Requested amount of GPU memory (24793579520 bytes) could not be \
allocated. There may not be enough free memory for allocation to succeed.
[11/10/2023-06:30:40] [TRT] [E] 2:
[11/10/2023-06:30:40] [TRT-LLM] [E] Engine building failed, please check the error log.
[11/10/2023-06:30:40] [TRT-LLM] [I] Config saved to config.json.""",
    # NVIDIA/TensorRT-LLM#1783, casper-hansen/AutoAWQ#423
    "torch-oom": """\
Traceback (most recent call last):
  File "quantize.py", line 177, in quantize
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 514.00 MiB. GPU 0 has a total \
capacity of 79.14 GiB of which 21.25 MiB is free.
Exception in thread monitor:
bye""",
    # NVIDIA/TensorRT#840
    "trt-allocate": "[E] [TRT] safeRuntime.cpp (25) - Cuda Error in allocate: 2 (out of memory)",
    # the forms that Python, numpy, C++ and torch have for the host's memory
    "host-python": "Traceback (most recent call last):\nMemoryError",
    "host-cpp": "terminate called after throwing an instance of 'std::bad_alloc'\n"
    "  what():  std::bad_alloc",
    "host-torch": "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. "
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 21474836480 bytes.",
    "host-errno": "OSError: [Errno 12] Cannot allocate memory",
    # hiyouga/LlamaFactory#5155
    "safetensors-disk": "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { "
    'code: 28, kind: StorageFull, message: "No space left on device" })',
    "python-disk": "OSError: [Errno 28] No space left on device: 'rank0.engine'",
    "quota": "OSError: [Errno 122] Disk quota exceeded",
    # pytorch/pytorch#31285, NVIDIA/TensorRT-LLM#159
    "no-kernel": "RuntimeError: CUDA error: no kernel image is available for execution on the "
    "device",
    "sm-warning": "UserWarning: Tesla P4 with CUDA capability sm_61 is not compatible with the "
    "current PyTorch installation.\nRuntimeError: build failed",
    # run-llama/llama_index#12318
    "incompatible": "[E] The engine plan file is generated on an incompatible device, expecting "
    "compute 8.0 got compute 8.9, please rebuild.",
    "needs-hopper": "RuntimeError: FP8 GEMM is only supported on sm90, requires compute capability "
    "9.0",
    # torch.cuda's own words
    "old-driver": "RuntimeError: CUDA driver version is insufficient for CUDA runtime version",
    "no-driver": "RuntimeError: Found no NVIDIA driver on your system.",
    "ecc": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    # huggingface_hub and requests
    "gated": "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
    "denied": "PermissionError: [Errno 13] Permission denied: 'rank0.safetensors'",
    "read-only": "OSError: [Errno 30] Read-only file system: 'model.cache'",
    "dns": "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Max "
    "retries exceeded with url: /datasets (Temporary failure in name resolution)",
    "offline": "OSError: We couldn't connect to 'https://hub' to load this file",
    "throttled": "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests",
    "assertion": 'Traceback (most recent call last):\n  File "build.py", line 1\n'
    "AssertionError: max_num_tokens must be positive\nshutting down",
}
REASONS = {
    ("Permanent", REASON_OUT_OF_MEMORY): [
        *("trt-oom", "torch-oom", "trt-allocate"),
    ],
    # The memory limit is in no key.
    ("Environment", REASON_OUT_OF_MEMORY): ["host-python", "host-cpp", "host-torch", "host-errno"],
    ("Environment", REASON_DISK_FULL): ["safetensors-disk", "python-disk", "quota"],
    ("Permanent", REASON_UNSUPPORTED_GPU): [
        *("no-kernel", "sm-warning", "incompatible", "needs-hopper"),
    ],
    ("Environment", REASON_GPU_MISMATCH): ["old-driver", "no-driver", "ecc"],
    ("Permanent", REASON_ACCESS_DENIED): ["gated", "denied", "read-only"],
    ("Environment", REASON_NETWORK): ["dns", "offline", "throttled"],
    ("Permanent", REASON_TOOL_FAILED): ["assertion"],
}
TABLE = [(name, *reason) for reason, names in REASONS.items() for name in names]


def ending(text: str, code: int = 1, stopped: str = "") -> Ending:
    return Ending(code, tuple(text.splitlines()), stopped)


@pytest.mark.parametrize(("name", "outcome", "reason"), TABLE)
def test_a_log_is_told_by_its_words(name: str, outcome: str, reason: str) -> None:
    cause = classify("builder", ending(LOGS[name]), NO_KILLS)
    assert (cause.outcome, cause.reason) == (outcome, reason)
    assert cause.message.startswith("builder ")
    assert cause.evidence in [line.strip() for line in LOGS[name].splitlines()]


def test_every_log_is_in_the_table() -> None:
    assert {name for name, _, _ in TABLE} == set(LOGS)


@pytest.mark.parametrize(
    "text",
    [
        # argparse
        "usage: trtllm-build [-h]\ntrtllm-build: error: unrecognized arguments: --tp_size 2",
        "usage: q\nquantize.py: error: argument --qformat: invalid choice: 'fp7'",
        "usage: q\nquantize.py: error: the following arguments are required: --model_dir",
        "usage: q\nquantize.py: error: ambiguous option: --max could match --max_a, --max_b",
        # click, and click with rich's frame
        "Usage: trtllm-serve [OPTIONS]\n\nError: No such option: --tp-size (Possible options: x)",
        "Usage: x\n\nError: Invalid value for '--backend': 'trt' is not one of 'pytorch'.",
        "Usage: x\n\nError: Missing option '--model'.",
        "╭─ Error ───╮\n│ No such option: --tp-size │\n╰──╯",
    ],
)
def test_a_usage_error_is_told_by_exit_status_and_words(text: str) -> None:
    cause = classify("tool", ending(text, 2), NO_KILLS)
    assert (cause.outcome, cause.reason) == ("Permanent", REASON_UNKNOWN_FLAG)
    assert cause.evidence in text
    assert classify("tool", ending(text, 1), NO_KILLS).reason == REASON_TOOL_FAILED


def test_exit_status_2_alone_is_no_usage_error() -> None:
    said = "python3: can't open file '/app/quantize.py': [Errno 2] No such file or directory"
    cause = classify("quantize", ending(said, 2), NO_KILLS)
    assert cause.reason == REASON_TOOL_FAILED
    assert "can't open file" in cause.message


@pytest.mark.parametrize("code", [-signal.SIGKILL, 128 + signal.SIGKILL])
def test_a_kill_is_a_memory_kill_unless_the_kernel_says_otherwise(code: int) -> None:
    unknown = classify("tool", ending("loading", code), Surroundings(oom_kills=None))
    assert (unknown.outcome, unknown.reason) == ("Environment", REASON_OUT_OF_MEMORY)
    assert "stepResources.memory" in unknown.message
    asks = classify("lm_eval", ending("loading", code), Surroundings(oom_kills=None))
    assert "raise fetchResources.memory" in asks.message, "it computes nothing itself"
    words = classify("lm_eval", ending("MemoryError", 1), NO_KILLS)
    assert "raise fetchResources.memory" in words.message
    counted = classify("tool", ending("x", code), Surroundings(oom_kills=1, memory_limit=2**36))
    assert counted.reason == REASON_OUT_OF_MEMORY
    assert "64.0 GiB" in counted.message
    other = classify("tool", ending("x", code), NO_KILLS)
    assert (other.outcome, other.reason) == ("Environment", REASON_KILLED)
    assert "SIGKILL" in other.message


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM"])
def test_a_signal_is_named_and_tried_again(name: str) -> None:
    cause = classify("tool", ending("x", -getattr(signal, name)), NO_KILLS)
    assert (cause.outcome, cause.reason) == ("Environment", REASON_KILLED)
    assert name in cause.message


def test_an_abort_whose_log_tells_more_is_told_by_its_log() -> None:
    cause = classify("tool", ending(LOGS["host-cpp"], -signal.SIGABRT), NO_KILLS)
    assert cause.reason == REASON_OUT_OF_MEMORY


def test_an_end_that_the_runner_has_made_is_not_blamed_on_the_tool() -> None:
    out_of_time = Surroundings(oom_kills=0, timed_out=True)
    late = classify("tool", ending(LOGS["dns"], -15, "the step took more than 9 s"), out_of_time)
    assert (late.outcome, late.reason) == ("Environment", REASON_TIMEOUT)
    assert "more than 9 s" in late.message
    told = Surroundings(oom_kills=0, told_to_end="the pod was told to end (SIGTERM)")
    asked = classify("tool", ending(LOGS["torch-oom"], -15, "told"), told)
    assert (asked.outcome, asked.reason) == ("Environment", REASON_KILLED)


def test_a_warning_long_before_the_end_is_no_cause() -> None:
    early = "ConnectionError: retrying\n" + "step\n" * 100
    cause = classify("tool", ending(early + LOGS["assertion"]), NO_KILLS)
    assert cause.reason == REASON_TOOL_FAILED
    assert "max_num_tokens must be positive" in cause.message


def test_a_tactic_that_did_not_fit_is_no_cause() -> None:
    warned = "[TRT] [W] Requested amount of GPU memory (9 bytes) could not be allocated."
    cause = classify("tool", ending(f"{warned}\n{LOGS['assertion']}"), NO_KILLS)
    assert cause.reason == REASON_TOOL_FAILED


def test_what_a_tool_warned_of_before_it_ended_well_is_no_cause() -> None:
    assert classify("tool", ending(LOGS["dns"], 0), NO_KILLS).reason == REASON_TOOL_FAILED
    assert classify("tool", ending(LOGS["torch-oom"], 0), NO_KILLS).reason == REASON_OUT_OF_MEMORY


def test_a_full_disk_is_told_with_the_room_there_is() -> None:
    message = classify("tool", ending(LOGS["python-disk"]), NO_KILLS).message
    assert "the claim has 5.0 GiB free, scratch has 0.0 GiB free" in message


def test_a_silent_failure_says_that_it_was_silent() -> None:
    cause = classify("tool", ending("", 7), NO_KILLS)
    assert cause.reason == REASON_TOOL_FAILED
    assert "exit status 7, and said nothing" in cause.message


@pytest.mark.parametrize(
    ("number", "outcome", "reason"),
    [
        (errno.ENOSPC, "Environment", REASON_DISK_FULL),
        (errno.EDQUOT, "Environment", REASON_DISK_FULL),
        (errno.EACCES, "Permanent", REASON_ACCESS_DENIED),
        (errno.EROFS, "Permanent", REASON_ACCESS_DENIED),
        (errno.EIO, "Environment", REASON_TOOL_FAILED),
        (errno.ESTALE, "Environment", REASON_TOOL_FAILED),
    ],
)
def test_a_failure_of_the_storage_itself(
    tmp_path: Path, number: int, outcome: str, reason: str
) -> None:
    cause = storage_cause(OSError(number, os.strerror(number), "/store/x"), tmp_path)
    assert (cause.outcome, cause.reason) == (outcome, reason)
    assert "/store/x" in cause.message


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.events": "low 0\noom 4\noom_kill {}\n", "memory.max": "1024\n"}, 1024),
        ({"memory.events": "oom_kill {}\noom_group_kill 0\n", "memory.max": "max\n"}, 0),
        (
            {
                "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n",
                "memory/memory.limit_in_bytes": "2048\n",
            },
            2048,
        ),
        (
            {
                "memory/memory.oom_control": "oom_kill {}\n",
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            0,
        ),
    ],
)
def test_memory_kills_are_counted_on_both_versions_of_cgroups(
    tmp_path: Path, files: dict[str, str], limit: int
) -> None:
    def write(kills: int) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text.replace("{}", str(kills)))

    write(3)
    watch = MemoryWatch(tmp_path)
    assert watch.kills() == 0
    assert watch.limit_bytes() == limit
    write(5)
    assert watch.kills() == 2


def test_where_the_kernel_does_not_tell_nothing_is_known(tmp_path: Path) -> None:
    watch = MemoryWatch(tmp_path)
    assert watch.kills() is None
    assert watch.limit_bytes() == 0


BARE = Report("Permanent", REASON_TOOL_FAILED, "m" * 700, "engine", "0" * 16)


def test_a_short_log_is_kept_whole() -> None:
    tail = [f"line {number}" for number in range(40)]
    assert with_tail(BARE, tail, "").log_tail.splitlines() == tail


def test_the_exception_survives_a_banner_that_is_longer_than_the_message() -> None:
    exception = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.56 GiB."
    frames = [f'  File "model.py", line {number}, in forward' for number in range(60)]
    banner = [f"MPI_ABORT was invoked on rank 0 in communicator {number}" for number in range(200)]
    report = with_tail(BARE, [*frames, exception, *banner], exception)
    kept = report.log_tail.splitlines()
    assert exception in kept
    assert frames[-1] in kept
    assert banner[-1] in kept
    assert sum("lines left out" in line for line in kept) == 2
    assert encode_report(report) == encode(report)


def test_of_a_long_exception_beginning_and_end_are_kept() -> None:
    exception = "ValueError: " + "x" * 50_000 + " is not allowed"
    report = with_tail(BARE, ["before", exception, "after"], exception)
    assert "ValueError: xxx" in report.log_tail
    assert "xxx is not allowed" in report.log_tail
    assert report.log_tail.startswith("before\n")
    assert report.log_tail.endswith("\nafter")


@given(
    tail=st.lists(st.text(max_size=3000), max_size=60),
    where=st.integers(0, 100),
    message=st.text(max_size=400),
)
def test_a_report_always_fits_and_always_has_its_evidence(
    tail: list[str], where: int, message: str
) -> None:
    lines = [line.replace("\n", " ").replace("\r", " ") for line in tail]
    evidence = lines[where % len(lines)].strip() if lines else ""
    report = with_tail(Report("Permanent", "X", message), lines, evidence)
    text = encode_report(report)
    assert len(text.encode()) <= TERMINATION_LIMIT_BYTES
    assert text == encode(report)
    found = decode(Report, text)
    assert found.message == message
    if evidence.isascii():
        assert evidence[:100] in found.log_tail


def test_the_longest_message_still_leaves_room_for_the_log(tmp_path: Path) -> None:
    """Tools print lines of any length; the report names the cause and shows the end."""
    program = "print('RuntimeError: ' + 'ä' * 20000); print('last words'); raise SystemExit(1)"
    volumes = Volumes.make(tmp_path)
    report = volumes.run(with_command(volumes.checkpoint(), "python3", "-c", program))
    assert len(encode_report(report).encode()) <= TERMINATION_LIMIT_BYTES
    assert "RuntimeError: ä" in report.message
    assert report.log_tail.endswith("last words")
