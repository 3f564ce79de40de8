"""When a pod is ready, who hangs, when a drain is over: decisions on plain data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.runner.processes import Process, below, read_stat
from shardwright.runner.serve.drain import CUT, DONE, WAIT, Draining, drain_verdict, hang, stall
from shardwright.runner.serve.inflight import in_flight, look, read_table
from shardwright.runner.serve.probe import Answer
from shardwright.runner.serve.view import RankRow, View, row_heard, suspects, told, unready


def row(rank: int, *, state: str = "S", cpu: float = 0.0, pid: int = 7) -> RankRow:
    return RankRow(rank, rank // 2, rank % 2, "n", "p", str(rank % 2), pid, state, cpu)


ROWS = tuple(row(rank) for rank in range(4))
LEADER = View(
    "m",
    0,
    1,
    0,
    2,
    2,
    "Serving",
    engine=True,
    rows=ROWS,
    peers=(1,),
    generated_at=90.0,
    healthy_at=99.0,
)
WORKER = replace(
    LEADER,
    stage=1,
    engine=False,
    rows=ROWS[2:],
    peers=(0,),
    generated_at=None,
    healthy_at=None,
)
SINGLE = replace(LEADER, pipeline=1, rows=ROWS[:2], peers=())


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (LEADER, ""),
        (WORKER, ""),
        (SINGLE, ""),
        (replace(WORKER, phase="Starting"), ""),
        (replace(LEADER, phase="Meeting", detail="waiting for stages [1]"), "waiting for stages"),
        (replace(LEADER, phase="Draining"), "draining"),
        (replace(WORKER, phase="Draining"), "draining"),
        (replace(LEADER, phase="Ending"), "ending"),
        (replace(LEADER, peers=()), "1 of 2 stages are connected"),
        (replace(WORKER, peers=()), "0 of 1 stages are connected"),
        (replace(LEADER, rows=ROWS[:3]), "3 of 4 ranks run"),
        (replace(LEADER, rows=(*ROWS[:3], row(3, state="Z"))), "3 of 4 ranks run"),
        (replace(WORKER, rows=(ROWS[2], row(3, pid=0))), "1 of 2 ranks run"),
        (replace(LEADER, generated_at=None), "has not answered a generation"),
        (replace(LEADER, healthy_at=None), "not been healthy"),
        (replace(LEADER, healthy_at=80.0), "not been healthy for 15 s"),
    ],
)
def test_readiness_of_leader_and_worker(view: View, why: str) -> None:
    found = unready(view, 100.0)
    assert bool(found) is bool(why)
    assert why in found
    page = told(view, 100.0)
    assert page["ready"] is not bool(why)
    assert page["why"] == found


def test_the_status_page_lists_each_rank_with_node_pod_stage_tensor_rank_and_gpu() -> None:
    found = told(LEADER, 100.0)
    assert [(r["rank"], r["stage"], r["tensorRank"], r["gpu"]) for r in found["ranks"]] == [
        (0, 0, 0, "0"),
        (1, 0, 1, "1"),
        (2, 1, 0, "0"),
        (3, 1, 1, "1"),
    ]
    assert {"node", "pod", "pid", "state"} <= set(found["ranks"][0])
    assert found["stagesConnected"] == [0, 1]
    assert found["secondsSinceGeneration"] == 10.0
    assert tuple(row_heard(item) for item in found["ranks"]) == ROWS


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ([("S", 60), ("S", 60), ("T", 0), ("S", 60)], [2]),
        ([("R", 60), ("R", 60), ("R", 60), ("S", 0.1)], [3]),
        ([("S", 0), ("S", 0), ("S", 0), ("S", 0)], []),
        ([("R", 60), ("R", 60), ("R", 60), ("R", 60)], []),
        ([("R", 60), ("S", 0), ("S", 0), ("R", 60)], [1, 2]),
    ],
    ids=["stopped", "idle", "all-idle", "all-spin", "two-idle"],
)
def test_who_holds_the_others_up(after: list[tuple[str, float]], named: list[int]) -> None:
    rows = [row(rank, state=state, cpu=10 + cpu) for rank, (state, cpu) in enumerate(after)]
    before = [row(rank, cpu=10) for rank in range(4)]
    assert [found.rank for found in suspects(before, rows)] == named


@pytest.mark.parametrize(
    ("draining", "now", "verdict"),
    [
        (Draining(0.0, empty_since=0.0), 0.5, WAIT),
        (Draining(0.0, empty_since=0.0), 5.0, DONE),
        (Draining(0.0, empty_since=4.5), 5.0, WAIT),
        (Draining(0.0, empty_since=30.0), 31.0, DONE),
        (Draining(0.0), 119.0, WAIT),
        (Draining(0.0), 120.0, CUT),
    ],
)
def test_a_drain_waits_for_requests_and_for_the_news_of_it(
    draining: Draining, now: float, verdict: str
) -> None:
    assert drain_verdict(draining, now, timeout=120, lame_duck=5) == verdict


def test_a_lame_duck_never_outlasts_the_timeout() -> None:
    assert drain_verdict(Draining(0.0, empty_since=0.0), 2.0, timeout=2, lame_duck=5) == CUT


def test_a_port_must_stay_empty() -> None:
    found = Draining(0.0).seen(3, 1.0).seen(0, 2.0).seen(0, 2.5)
    assert (found.empty_since, found.most) == (2.0, 3)
    assert found.seen(1, 3.0).empty_since is None
    assert found.seen(None, 3.0).empty_since is None


@pytest.mark.parametrize(
    ("answer", "hangs"),
    [
        (Answer(), False),
        (Answer(generated_at=100.0, moved_at=100.0), True),
        (Answer(generated_at=350.0, moved_at=350.0), False),
        (Answer(generated_at=100.0, moved_at=350.0), False),
        (Answer(generated_at=100.0, healthy_at=399.0), True),
    ],
    ids=["never-served", "silent", "token", "counters", "health-page-only"],
)
def test_a_hang_is_no_token_and_no_counter(answer: Answer, hangs: bool) -> None:
    assert bool(hang(answer, 0.0, 400.0, 300.0)) is hangs


def test_a_hang_tells_the_last_error() -> None:
    found = hang(Answer(generated_at=0.0, last_error="timed out"), 0.0, 300.0, 300.0)
    assert found == "no token was generated and no counter moved for 300 s (timed out)"


def test_loading_stalls_without_a_line_and_without_bytes() -> None:
    assert stall(0.0, 899.0, 900.0) == ""
    assert "900 s while loading" in stall(0.0, 900.0, 900.0)


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def line(port: int, state: int, unsent: int = 0) -> str:
    return (
        f"   0: 0100007F:{port:04X} 0100007F:C350 {state:02X} {unsent:08X}:00000000 "
        "00:00000000 00000000  1000        0 1 1\n"
    )


def test_connections_of_the_engines_port_are_counted() -> None:
    table = HEADER + "".join(
        [
            line(8000, 10),  # listening
            line(8000, 1),  # established
            line(8000, 8),  # the client has sent all and still reads
            line(8000, 4, unsent=10),  # closed, with bytes to send
            line(8000, 4),  # closed, all sent
            line(8000, 6),  # time wait
            line(50000, 1),  # the other end of one, on the same machine
            line(8091, 1),  # the runner's own port
        ]
    )
    assert in_flight(read_table(table), 8000) == 3


def test_ipv6_tables_are_read_and_missing_ones_are_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "tcp6"
    path.write_text(
        HEADER
        + "   0: 00000000000000000000000001000000:1F40 00000000000000000000000001000000:C350 01 "
        "00000000:00000000 00:00000000 00000000  1000 0 1 1\n"
    )
    assert look(8000, [path, tmp_path / "absent"]) == 1
    assert look(8000, [tmp_path / "absent"]) is None
    path.write_text(HEADER + "nonsense\n")
    assert look(8000, [path]) is None


def test_a_process_whose_name_looks_like_fields_is_read() -> None:
    text = "42 (a) S 1 (b) R 7 " + " ".join(str(n) for n in range(60))
    found = read_stat(text, 100)
    assert (found.pid, found.state, found.parent) == (42, "R", 7)
    with pytest.raises(ValueError, match="no line of"):
        read_stat("nonsense", 100)


def test_descendants_are_found_through_every_generation_but_zombies_are_not_alive() -> None:
    def process(pid: int, parent: int, state: str = "S") -> Process:
        return Process(pid, parent, state, 0.0, 0)

    family = [
        process(1, 0),
        process(2, 1),
        process(3, 2, "Z"),
        process(4, 3),
        process(5, 4),
        process(6, 99),
    ]
    assert sorted(found.pid for found in below(1, family)) == [2, 4, 5]
