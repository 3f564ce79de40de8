"""Whose fault the end of a group is."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from tests.support.serving import REQUEST

from shardwright.runner.contract import FirstCause, Report, decode, encode_report
from shardwright.runner.serve.cause import (
    Cause,
    first_cause,
    heard,
    hung,
    launcher_ended,
    peer_lost,
    rank_ended,
    report,
    server_ended,
)


@pytest.mark.parametrize(
    ("code", "tail", "oom", "outcome", "reason", "words"),
    [
        (1, "ValueError: boom", False, "Environment", "RankFailed", "exited with code 1"),
        (0, "", False, "Environment", "RankFailed", "exited with code 0"),
        (-11, "", False, "Environment", "RankFailed", "was ended by SIGSEGV"),
        (-9, "", False, "Environment", "Killed", "was ended by SIGKILL"),
        (-9, "", True, "Environment", "OutOfMemory", "spec.pod.resources.memory"),
        (137, "", True, "Environment", "OutOfMemory", "exited with code 137"),
        (1, "torch.OutOfMemoryError: CUDA out of memory.", False, "Environment", "OutOfMemory", ""),
        (
            1,
            "Executor creation failed due to insufficient GPU memory",
            False,
            "Environment",
            "OutOfMemory",
            "",
        ),
        (
            2,
            "trtllm-serve: error: unrecognized arguments: --tp_sise",
            False,
            "Permanent",
            "UnknownFlag",
            "",
        ),
        (2, "Error: No such option: --tp_sise", False, "Permanent", "UnknownFlag", ""),
        (
            1,
            "The engine plan file is generated on an incompatible device, expecting compute 8.0",
            False,
            "Environment",
            "GPUMismatch",
            "",
        ),
        (
            1,
            "Version tag does not match. Note: Current Version: 228, Serialized: 237",
            False,
            "Permanent",
            "ManifestMismatch",
            "",
        ),
        (
            1,
            "RuntimeError: MPI size 2 != TP size 4 * PP size 1 * CP Size 1",
            False,
            "Permanent",
            "ManifestMismatch",
            "",
        ),
    ],
)
def test_what_a_ranks_end_means(
    code: int, tail: str, oom: bool, outcome: str, reason: str, words: str
) -> None:
    found = rank_ended(1, 3, code, tail, 5.0, oom_killed=oom)
    assert (found.outcome, found.reason, found.weight) == (outcome, reason, 0)
    assert found.message.startswith("rank 3 ")
    assert words in found.message
    assert found.tail == tail


@pytest.mark.parametrize(
    ("code", "tail"),
    [
        (-signal.SIGTERM, ""),
        (128 + signal.SIGTERM, "shutting down"),
        (1, "a:1:2 [0] NCCL WARN socketProgress: connection closed by remote peer b<123>"),
        (1, "ncclRemoteError: A call failed possibly due to a network error or a remote process"),
        (1, "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD"),
    ],
)
def test_a_rank_that_went_with_the_others_is_a_victim(code: int, tail: str) -> None:
    assert rank_ended(0, 0, code, tail, 1.0).weight == 1


def test_the_first_cause_is_no_victim_and_no_launcher() -> None:
    causes = [
        launcher_ended(0, "mpirun", 1, "mpirun noticed …", 1.1),
        rank_ended(0, 0, -15, "", 1.2),
        rank_ended(1, 2, -11, "", 1.5),
        rank_ended(1, 3, 1, "", 1.6),
    ]
    found = first_cause(causes)
    assert found is not None
    assert (found.stage, found.rank) == (1, 2)
    assert first_cause(causes[:2]) == causes[1]
    assert first_cause(causes[:1]) == causes[0]
    assert first_cause([]) is None


def test_a_launcher_that_was_killed_went_before_its_ranks() -> None:
    """Open MPI ends the ranks of a killed daemon with code 195 and those of others by SIGTERM."""
    killed = launcher_ended(1, "mpi daemon", -9, "", 1.3)
    assert killed.message == "mpi daemon was ended by SIGKILL"
    assert first_cause([rank_ended(1, 2, 195, "", 1.0), killed]) == killed
    assert first_cause([rank_ended(0, 1, -15, "", 1.0), killed]) == killed
    earlier = rank_ended(1, 2, 1, "", 0.7)
    assert first_cause([killed, earlier]) == earlier
    told = launcher_ended(1, "mpi daemon", -15, "", 1.0)
    assert first_cause([rank_ended(0, 1, -15, "", 1.3), told]) != told


def test_a_crash_of_its_own_goes_before_the_errors_that_others_have_of_it() -> None:
    others = rank_ended(0, 1, 14, "", 5.0)
    crash = rank_ended(1, 3, -11, "", 5.1)
    assert first_cause([others, crash]) == crash
    assert first_cause([others, rank_ended(1, 3, 1, "", 5.1)]) == others
    assert first_cause([others, rank_ended(1, 3, -11, "", 5.9)]) == others


def test_ranks_that_are_killed_after_a_stage_was_lost_are_no_cause() -> None:
    lost = peer_lost(0, 1, "closed", 1.0)
    assert first_cause([rank_ended(0, 0, -9, "", 1.3), lost]) == lost
    before = rank_ended(0, 0, -9, "", 0.9)
    assert first_cause([lost, before]) == before


def test_a_cause_reaches_the_other_runner_with_its_age() -> None:
    cause = rank_ended(1, 3, 1, "x" * 20_000, 100.0)
    found = heard(cause.told(100.5), 7.0)
    assert found.at == pytest.approx(6.5)
    assert replace(found, at=100.0, tail="") == replace(cause, tail="")
    assert len(found.tail) == 8192


@pytest.mark.parametrize("raw", [{}, {"stage": "x"}, {"stage": 1, "rank": None}])
def test_what_is_no_cause_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        heard(raw, 0.0)


def test_the_pod_of_the_first_cause_reports_it_and_the_others_name_it() -> None:
    verdict = rank_ended(1, 3, -11, "Segmentation fault", 1.0)
    own = report(verdict, REQUEST, 12.0)
    assert (own.outcome, own.reason, own.rank) == ("Environment", "RankFailed", 3)
    assert own.log_tail == "Segmentation fault"
    other = report(verdict, replace(REQUEST, stage=0), 12.0)
    assert (other.reason, other.rank) == ("PeerLost", -1)
    assert other.first == FirstCause(
        1, 3, "Environment", "RankFailed", "rank 3 was ended by SIGSEGV"
    )
    assert decode(Report, encode_report(other)) == other
    assert other.message == ("stage 1, rank 3 went first: RankFailed: rank 3 was ended by SIGSEGV")


def test_a_drained_pod_is_done() -> None:
    assert report(None, REQUEST, 3.0) == Report(
        outcome="Done", message="drained", step="engine", key="0" * 16, seconds=3.0
    )


def test_a_long_log_keeps_its_exception_within_the_kubelets_limit() -> None:
    tail = "\n".join([*(f"layer {n} loaded ✓" for n in range(2000)), "ValueError: the reason"])
    text = encode_report(report(rank_ended(1, 2, 1, tail, 0.0), REQUEST, 1.0))
    assert len(text.encode()) <= 4096
    found = decode(Report, text)
    assert found.log_tail.endswith("ValueError: the reason")
    assert found.rank == 2
    long = replace(rank_ended(1, 2, 1, tail, 0.0), message="rank 2 " + "x" * 3000)
    text = encode_report(report(long, replace(REQUEST, stage=0), 1.0))
    assert len(text.encode()) <= 4096
    found = decode(Report, text)
    assert found.first is not None
    assert (found.first.rank, len(found.first.message)) == (2, 500)


def test_a_server_and_a_hang_are_told_in_words() -> None:
    assert server_ended(0, 1, "", 0.0).message == "the engine's server exited with code 1"
    assert hung(1, 3, "no token for 300 s", 0.0).message == "rank 3 hangs: no token for 300 s"
    assert hung(0, -1, "no token", 0.0).message == "the group hangs: no token"
    assert hung(0, -1, "", 0.0).reason == "RankHung"


def test_a_number_that_is_no_signal_is_still_told() -> None:
    assert isinstance(rank_ended(0, 0, -99, "", 0.0), Cause)
    assert "signal 99" in rank_ended(0, 0, -99, "", 0.0).message


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\n"], ids=ascii)
def test_a_report_of_any_letters_fits_the_kubelet_s_limit_and_is_read_again(letter: str) -> None:
    first = FirstCause(1, 3, "Environment", "RankFailed", letter * 5000)
    text = encode_report(
        Report("Environment", "PeerLost", letter * 5000, first=first, log_tail=letter * 9000)
    )
    assert len(text.encode()) <= 4096
    told = decode(Report, text)
    assert told.first is not None
    assert 0 < len(told.first.message) <= 500
    assert told.message
