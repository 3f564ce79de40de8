"""One pod with a server of its own: drain, death, hang and what is refused, as real processes."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.runner.serve_world import (
    GATE,
    HERE,
    SECONDS,
    Pod,
    eventually,
    look_into,
    needs_mpi,
    python,
    solo,
)

from shardwright.runner.contract import Prepared
from shardwright.runner.processes import all_processes, below

pytestmark = pytest.mark.timeout(300)

ENGINE = (python(), str(HERE / "serve_engine.py"), "{http}")


def ready(pod: Pod) -> None:
    eventually(lambda: pod.get("/readyz")[0] == 200, says=pod.log)


def generate(pod: Pod, tokens: int) -> str:
    body = json.dumps({"prompt": "x", "max_tokens": tokens}).encode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{pod.http_port}/v1/completions",
        body,
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:  # noqa: S310 - our own pod
        found: str = json.loads(answer.read())["choices"][0]["text"]
        return found


def engines(pod: Pod) -> list[int]:
    return [process.pid for process in below(pod.process.pid, all_processes())]


def test_fifty_requests_under_way_all_finish_after_sigterm(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = {"ENGINE_TOKEN_SECONDS": "0.1", GATE: str(gate)}
    with solo(tmp_path, ENGINE, slow, drain_timeout_seconds=600) as pod:
        ready(pod)
        found: list[str] = []

        def one() -> None:
            try:
                found.append(generate(pod, 20))
            except OSError as error:
                found.append(f"failed: {error}")

        threads = [threading.Thread(target=one, daemon=True) for _ in range(50)]
        for thread in threads:
            thread.start()
        pod.wait_for("waits at the gate", 50)
        pod.process.send_signal(signal.SIGTERM)
        eventually(lambda: pod.get("/readyz") == (503, "not ready: draining: signal 15\n"))
        assert pod.get("/healthz")[0] == 200
        # What a router still sends while the news spreads is answered too.
        assert generate(pod, 1) == "1"
        assert found == []
        gate.touch()
        for thread in threads:
            thread.join(SECONDS)
        assert found == [" ".join(["1"] * 20)] * 50
        report = pod.end()
        assert (report.outcome, report.message) == ("Done", "drained")
        assert pod.process.returncode == 0
        [drained] = pod.said("drained")
        assert (drained["verdict"], drained["cut"]) == ("Done", 0)
        assert drained["most"] >= 50


def test_a_drain_ends_at_its_timeout_and_says_how_many_it_cut(tmp_path: Path) -> None:
    never = {GATE: str(tmp_path / "gate")}
    with (
        ThreadPoolExecutor() as worker,
        solo(tmp_path, ENGINE, never, drain_timeout_seconds=2) as pod,
    ):
        ready(pod)
        asked = worker.submit(generate, pod, 2)
        pod.wait_for("waits at the gate")
        pod.process.send_signal(signal.SIGTERM)
        assert pod.end().outcome == "Done"
        [drained] = pod.said("drained")
        assert (drained["verdict"], drained["cut"]) == ("Cut", 1)
        assert isinstance(asked.exception(SECONDS), OSError)


def test_an_idle_engine_is_drained_after_the_lame_duck_seconds(tmp_path: Path) -> None:
    with solo(tmp_path, ENGINE, drain_timeout_seconds=600) as pod:
        ready(pod)
        started = time.monotonic()
        pod.process.send_signal(signal.SIGTERM)
        assert pod.end().outcome == "Done"
        assert time.monotonic() - started >= 1.0
        assert [line["verdict"] for line in pod.said("drained")] == ["Done"]
        assert pod.left() == {}


def test_a_server_that_dies_is_reported_with_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 987.1; sleep 987.1'])\n"
        "print('loading', flush=True); time.sleep(1)\n"
        "raise RuntimeError('engine exploded')\n"
    )
    with solo(tmp_path, (python(), "-c", code)) as pod:
        report = pod.end()
        assert (report.outcome, report.reason) == ("Environment", "RankFailed")
        assert report.message == "the engine's server exited with code 1"
        assert report.log_tail.endswith("RuntimeError: engine exploded")
        assert pod.left() == {}
        assert pod.process.returncode == 1


def test_an_unknown_flag_is_permanent(tmp_path: Path) -> None:
    code = (
        "import argparse\n"
        "parser = argparse.ArgumentParser('trtllm-serve')\n"
        "parser.parse_args(['--tp_sise', '2'])\n"
    )
    with solo(tmp_path, (python(), "-c", code)) as pod:
        report = pod.end()
        assert (report.outcome, report.reason) == ("Permanent", "UnknownFlag")
        assert "unrecognized arguments: --tp_sise" in report.log_tail


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with solo(tmp_path, ("/no/such/trtllm-serve",)) as pod:
        report = pod.end()
        assert report.reason == "RankFailed"
        assert "/no/such/trtllm-serve cannot be started" in report.log_tail


def test_a_stopped_server_hangs_and_is_killed(tmp_path: Path) -> None:
    with solo(tmp_path, ENGINE, hang_seconds=8) as pod:
        ready(pod)
        os.kill(engines(pod)[0], signal.SIGSTOP)
        eventually(lambda: pod.get("/healthz")[0] in (200, 0))
        report = pod.end()
        assert (report.reason, report.rank) == ("RankHung", 0)
        assert pod.left() == {}


def test_a_busy_engine_costs_traffic_at_most_and_never_its_life(tmp_path: Path) -> None:
    """It answers no probe for a while; liveness is the runner's own, so that nobody kills it."""
    with solo(tmp_path, ENGINE, hang_seconds=600) as pod:
        ready(pod)
        [server] = engines(pod)
        os.kill(server, signal.SIGSTOP)
        ends = time.monotonic() + 5
        while time.monotonic() < ends:
            # It stands still meanwhile, so no answer has waited for it.
            assert pod.get("/healthz")[0] == 200
            time.sleep(0.2)
        os.kill(server, signal.SIGCONT)
        ready(pod)
        assert engines(pod) == [server]
        assert generate(pod, 1) == "1"


def test_a_server_that_loads_without_a_sign_stalls(tmp_path: Path) -> None:
    code = "import time; print('loading', flush=True); time.sleep(600)"
    with solo(tmp_path, (python(), "-c", code), stall_seconds=3) as pod:
        report = pod.end()
        assert report.reason == "RankHung"
        assert "nothing was printed and nothing was read for" in report.message


def test_a_server_that_reads_its_weights_in_silence_does_not_stall(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(b"\0" * 2**20)
    code = (
        "import time\n"
        "for _ in range(22):\n"
        f"    open({str(weights)!r}, 'rb').read()\n"
        "    time.sleep(0.5)\n"
        "print('loaded'); raise SystemExit(9)\n"
    )
    with solo(tmp_path, (python(), "-c", code), stall_seconds=8) as pod:
        assert pod.end().message == "the engine's server exited with code 9"


def test_a_lost_process_of_the_engine_ends_the_pod_only_if_no_token_comes(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, threading\n"
        f"sys.path.insert(0, {str(HERE)!r})\n"
        "import serve_engine\n"
        "extra = subprocess.Popen(['sleep', '987.2'])\n"
        "core = subprocess.Popen(['sleep', '987.3'])\n"
        "def watch():\n"
        "    core.wait()\n"
        "    serve_engine.Handler.work = type('Dead', (), {'put': lambda *_: None})()\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "threading.Thread(target=extra.wait, daemon=True).start()\n"
        "serve_engine.main(int(sys.argv[1]))\n"
    )
    pace = {"missing": 8.0, "generation": 1.0}
    with solo(tmp_path, (python(), "-c", code, "{http}"), pace=pace) as pod:
        ready(pod)
        kill_by_words(pod, "987.2")
        time.sleep(10)
        assert pod.process.poll() is None
        ready(pod)
        kill_by_words(pod, "987.3")
        report = pod.end()
        assert report.reason == "RankFailed"
        assert report.message.startswith("a process of the engine ended, and no token")


def kill_by_words(pod: Pod, word: str) -> None:
    [found] = [pid for pid in engines(pod) if words(pid) == ["sleep", word]]
    os.kill(found, signal.SIGKILL)


def test_a_truncated_engine_is_refused_and_nothing_is_started(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    code = f"open({str(marker)!r}, 'w')"
    with solo(tmp_path, (python(), "-c", code), key="f" * 16) as pod:
        report = pod.end()
        assert (report.outcome, report.reason) == ("Permanent", "ManifestMismatch")
        assert "asked for engine ffffffffffffffff" in report.message
        assert not marker.exists()


def test_a_launch_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with solo(tmp_path, ENGINE, launch="ssh") as pod:
        report = pod.end()
        assert (report.outcome, report.reason) == ("Permanent", "ToolFailed")
        assert report.message == "launch is 'ssh', this runner knows mpi, each"


def words(pid: int) -> list[str]:
    return look_into(pid, "cmdline").decode().split("\0")[:-1]


@needs_mpi
def test_ranks_of_one_stage_meet_under_mpirun_and_followers_run_their_own_command(
    tmp_path: Path,
) -> None:
    """As Triton's leader mode has it: one server a rank, and only the first serves everything."""
    followers = (python(), str(HERE / "serve_engine.py"), "0", "--rank={rank}")
    prepared = Prepared(files={"m/1/.keep": ""}, followers=followers)
    with solo(tmp_path, ENGINE, tensor=2, launch="mpi", prepared=prepared) as pod:
        ready(pod)
        # A sum over both ranks, 1 + 2.
        assert generate(pod, 2) == "3 3"
        commands = [words(pid) for pid in engines(pod)]
        ranks = [found for found in commands if str(HERE / "serve_engine.py") in found]
        assert sorted(found[2:] for found in ranks) == [["0", "--rank=1"], [str(pod.http_port)]]
        assert [row["rank"] for row in pod.status()["ranks"]] == [0, 1]
        assert (tmp_path / "scratch" / "repository" / "m" / "1" / ".keep").exists()
        pod.process.send_signal(signal.SIGTERM)
        assert pod.end().outcome == "Done"
        assert pod.left() == {}


@needs_mpi
def test_a_follower_that_fails_ends_the_pod_with_its_own_words(tmp_path: Path) -> None:
    code = "import time; time.sleep(1); raise SystemExit('no such model')"
    prepared = Prepared(followers=(python(), "-c", code))
    with solo(tmp_path, ENGINE, tensor=2, launch="mpi", prepared=prepared) as pod:
        report = pod.end()
        assert (report.reason, report.rank) == ("RankFailed", 1)
        assert report.log_tail.endswith("no such model")


def test_an_image_without_the_models_it_is_to_serve_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "app"
    with solo(tmp_path, ENGINE, prepared=Prepared(copies={"m": str(missing)})) as pod:
        report = pod.end()
        assert (report.outcome, report.reason) == ("Permanent", "ToolFailed")
        assert f"no folder {missing}" in report.message
