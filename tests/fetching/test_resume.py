"""Broken connections, wrong checksums, full disks and killed pods: what is kept, what is said."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fetching.hub_server import REPOSITORY, HubServer
from tests.fetching.models import SHARDS, model, wanted
from tests.fetching.served import Fault
from tests.fetching.volume import Volume

from shardwright.fetching.remote import PLAN
from shardwright.runner.contract import ENV_POD_UID, ENV_REQUEST, MANIFEST, Report, decode, encode
from shardwright.runner.steps.stop import Stop

URI = f"hf://{REPOSITORY}@main"
FIRST, SECOND = SHARDS
# What a test waits for before it acts, the bytes after which a file comes so slowly that it is not
# whole before that, and how slowly: two files of 4 MiB take most of a minute.
MUCH = 2**20
SLOW = Fault(pause=1.0, pause_from=MUCH)


def env(hub: HubServer) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url}


def test_a_connection_that_breaks_is_gone_on_with(hub: HubServer, volume: Volume) -> None:
    files = model(8 * 2**20)
    hub.push(files)
    data = files[FIRST]
    hub.store.once(hub.path(data), Fault(cut=5_000_000), Fault(cut=2_000_000))
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    assert volume.files(URI) == wanted(files)
    # Not a byte twice.
    assert hub.sent(data) == len(data)
    assert hub.ranges(data) == ["", "bytes=5000000-", "bytes=7000000-"]


def test_connections_that_bring_next_to_nothing_are_bounded_and_what_came_is_kept(
    hub: HubServer, volume: Volume
) -> None:
    files = model()
    hub.push(files)
    data = files[FIRST]
    hub.store.always(hub.path(data), Fault(cut=10_000))
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Environment", "SourceUnavailable")
    assert FIRST in report.message
    kept = 10_000 * volume.patience.tries
    assert hub.sent(data) == kept
    hub.store.always(hub.path(data), None)
    assert volume.fetch(URI, env(hub)).outcome == "Done"
    assert hub.ranges(data)[-1] == f"bytes={kept}-"
    assert hub.sent(data) == len(data)


def test_finished_files_are_shared_between_attempts(hub: HubServer, volume: Volume) -> None:
    files = model()
    hub.push(files)
    final = volume.final(URI)
    # A failure ends the work on all others, so it comes when the other file is whole.
    hub.store.always(hub.path(files[SECOND]), Fault(status=503, until=(final / FIRST).exists))
    assert volume.fetch(URI, env(hub)).reason == "SourceUnavailable"
    assert (final / FIRST).read_bytes() == files[FIRST]
    assert not (final / MANIFEST).exists()
    assert (final / PLAN).exists()
    hub.store.always(hub.path(files[SECOND]), None)
    assert volume.fetch(URI, env(hub)).outcome == "Done"
    assert hub.sent(files[FIRST]) == len(files[FIRST])
    assert not (final / PLAN).exists()
    assert volume.leftovers() == []


def test_a_server_without_ranges_still_ends_in_a_model(hub: HubServer, volume: Volume) -> None:
    files = model()
    hub.push(files)
    hub.store.ranges = False
    hub.store.once(hub.path(files[FIRST]), Fault(cut=2_000_000))
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    assert volume.files(URI) == wanted(files)
    assert hub.sent(files[FIRST]) == 2_000_000 + len(files[FIRST])


def test_a_wrong_checksum_discards_that_file_only(hub: HubServer, volume: Volume) -> None:
    files = model()
    hub.push(files)
    hub.store.once(hub.path(files[FIRST]), Fault(flip=1_234_567))
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    assert volume.files(URI) == wanted(files)
    assert hub.sent(files[FIRST]) == 2 * len(files[FIRST])
    assert hub.sent(files[SECOND]) == len(files[SECOND])
    assert [line["file"] for line in volume.said("a file is wrong and is fetched again")] == [FIRST]


def test_a_small_files_git_id_is_checked_too(hub: HubServer, volume: Volume) -> None:
    files = model()
    commit = hub.push(files)
    # The first request for it is a HEAD.
    hub.hub.once(f"/models/{commit}/tokenizer.json", Fault(), Fault(flip=50))
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    [line] = volume.said("a file is wrong and is fetched again")
    assert (line["file"], line["found"][:6]) == ("tokenizer.json", "git is")
    assert volume.files(URI) == wanted(files)


def test_a_checksum_that_stays_wrong_ends_the_attempt_and_keeps_the_rest(
    hub: HubServer, volume: Volume
) -> None:
    files = model()
    hub.push(files)
    hub.wrong_sha256[FIRST] = "0" * 64
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Environment", "ChecksumMismatch")
    assert FIRST in report.message
    assert "0" * 64 in report.message
    assert hub.sent(files[FIRST]) == volume.patience.corrupt_tries * len(files[FIRST])
    assert not (volume.final(URI) / FIRST).exists()
    assert not (volume.final(URI) / MANIFEST).exists()


def test_a_published_file_that_rotted_is_fetched_again(hub: HubServer, volume: Volume) -> None:
    files = model()
    hub.push(files)
    assert volume.fetch(URI, env(hub)).outcome == "Done"
    final = volume.final(URI)
    (final / MANIFEST).unlink()
    with (final / FIRST).open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\0" * 100)
    (final / "stray.safetensors").write_bytes(b"of another commit")
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reused) == ("Done", False)
    assert volume.files(URI) == wanted(files)
    assert hub.sent(files[FIRST]) == 2 * len(files[FIRST])
    assert hub.sent(files[SECOND]) == len(files[SECOND])


def test_a_manifest_whose_files_are_gone_does_not_count(hub: HubServer, volume: Volume) -> None:
    files = model()
    hub.push(files)
    assert volume.fetch(URI, env(hub)).outcome == "Done"
    (volume.final(URI) / SECOND).unlink()
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reused) == ("Done", False)
    assert hub.sent(files[FIRST]) == len(files[FIRST])
    assert volume.files(URI) == wanted(files)


def test_the_beginning_of_another_pods_file_is_verified_like_any_other(
    hub: HubServer, volume: Volume
) -> None:
    """A node that lost power may leave zeros where bytes were."""
    files = model()
    hub.push(files)
    # The first connection gains, the following ones stand still, once the other file is whole.
    other = volume.final(URI) / SECOND
    hub.store.once(hub.path(files[FIRST]), Fault(cut=2**21))
    hub.store.always(hub.path(files[FIRST]), Fault(cut=0, until=other.exists))
    assert volume.fetch(URI, env(hub)).reason == "SourceUnavailable"
    [partial] = (volume.store / "shardwright/model").glob(".tmp-*/*.part")
    assert partial.stat().st_size == 2**21
    with partial.open("r+b") as file:
        file.seek(2**20)
        file.write(b"\0" * 4096)
    hub.store.always(hub.path(files[FIRST]), None)
    report = volume.fetch(URI, env(hub))
    assert report.outcome == "Done", report.message
    assert volume.files(URI) == wanted(files)
    assert volume.said("a file is wrong and is fetched again")


def until_kept(volume: Volume) -> None:
    """Wait until much of both weights' files is kept; what was sent may still be on its way."""
    deadline = time.monotonic() + 60
    while _kept(volume) != [True, True]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _kept(volume: Volume) -> list[bool]:
    found = []
    for part in (volume.store / "shardwright/model").glob(".tmp-*/*.part"):
        with contextlib.suppress(FileNotFoundError):  # a small file, whole by now
            found.append(part.stat().st_size >= MUCH)
    return found


@contextlib.contextmanager
def once_kept(volume: Volume, act: Callable[[], None]) -> Iterator[None]:
    """Act meanwhile, when much of both weights' files is kept."""

    def watch() -> None:
        until_kept(volume)
        act()

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        yield
        watching.result()


def test_sigterm_ends_an_attempt_soon_and_keeps_what_came(hub: HubServer, volume: Volume) -> None:
    files = model(4 * 2**20)
    hub.push(files)
    hub.store.always(hub.path(files[FIRST]), SLOW)
    hub.store.always(hub.path(files[SECOND]), SLOW)
    stop = Stop()
    with once_kept(volume, stop.set):
        report = volume.fetch(URI, env(hub), stop=stop)
    assert (report.outcome, report.reason) == ("Environment", "Killed")
    assert "SIGTERM" in report.message
    before = hub.sent(files[FIRST])
    assert 0 < before < len(files[FIRST])
    hub.store.always(hub.path(files[FIRST]), None)
    hub.store.always(hub.path(files[SECOND]), None)
    assert volume.fetch(URI, env(hub)).outcome == "Done"
    assert hub.ranges(files[FIRST])[-1] != ""


def test_the_steps_deadline_ends_an_attempt(hub: HubServer, volume: Volume) -> None:
    files = model(8 * 2**20)
    hub.push(files)
    hub.store.always(hub.path(files[FIRST]), Fault(pause=0.05))
    report = volume.fetch(URI, env(hub), timeout_seconds=1)
    assert (report.outcome, report.reason) == ("Environment", "Timeout")
    assert "timeouts.stepSeconds" in report.message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    (place / "store").mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(place / "store")], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place / "store")], check=True)


def test_room_is_looked_at_before_anything_is_fetched(
    hub: HubServer, volume: Volume, small_disk: Path
) -> None:
    files = model(10 * 2**20)
    hub.push(files)
    volume.root = small_disk
    report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Environment", "DiskFull")
    assert "storage.claimName" in report.message
    needed, free = (int(number) for number in re.findall(r"\b(\d{6,})\b", report.message))
    assert needed >= sum(map(len, wanted(files).values()))
    assert 0 < free <= 16 * 2**20
    assert hub.sent(files[FIRST]) == 0


def test_a_disk_that_fills_up_under_way_is_named_and_gone_on_with(
    hub: HubServer, volume: Volume, small_disk: Path
) -> None:
    files = model(4 * 2**20)
    hub.push(files)
    volume.root = small_disk
    filler = small_disk / "store" / "another"
    # There is room at first; somebody else takes it while the weights come.
    hub.store.always(hub.path(files[FIRST]), SLOW)
    hub.store.always(hub.path(files[SECOND]), SLOW)

    def fill() -> None:
        try:
            with filler.open("wb", buffering=0) as file:
                while file.write(b"\0" * 2**16):
                    pass
        except OSError:
            pass

    with pytest.MonkeyPatch.context() as patch, once_kept(volume, fill):
        patch.setattr("shardwright.fetching.work._SPARE_BYTES", 0)
        report = volume.fetch(URI, env(hub))
    assert (report.outcome, report.reason) == ("Environment", "DiskFull"), report.message
    assert " more bytes" in report.message
    assert "are free" in report.message
    filler.unlink()
    hub.store.always(hub.path(files[FIRST]), None)
    hub.store.always(hub.path(files[SECOND]), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardwright.fetching.work._SPARE_BYTES", 0)
        assert volume.fetch(URI, env(hub)).outcome == "Done"
    assert hub.ranges(files[FIRST])[-1] != ""


def started(volume: Volume, hub: HubServer, pod: str) -> subprocess.Popen[bytes]:
    """A fetch as a process of its own, as a pod runs it."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "shardwright.fetching"),
            *("--store", str(volume.store), "--source", str(volume.root / "source")),
            *("--termination-log", str(volume.places.termination_log)),
        ],
        env={
            **os.environ,
            "HF_ENDPOINT": hub.url,
            ENV_POD_UID: pod,
            ENV_REQUEST: encode(volume.request(URI)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_a_killed_pods_work_is_gone_on_with_by_the_next(hub: HubServer, volume: Volume) -> None:
    files = model(4 * 2**20)
    hub.push(files)
    for name in SHARDS:
        hub.store.always(hub.path(files[name]), SLOW)
    process = started(volume, hub, "pod-killed")
    try:
        until_kept(volume)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not volume.places.termination_log.exists()
    assert not (volume.final(URI) / MANIFEST).exists()
    for name in SHARDS:
        hub.store.always(hub.path(files[name]), None)
    hub.store.quiet()
    before = hub.sent(files[FIRST])
    process = started(volume, hub, "pod-next")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output.decode()
    report = decode(Report, volume.places.termination_log.read_text())
    assert report.outcome == "Done"
    assert volume.files(URI) == wanted(files)
    assert volume.leftovers() == []
    [_, resumed] = hub.ranges(files[FIRST])
    offset = int(resumed.removeprefix("bytes=").removesuffix("-"))
    assert offset >= MUCH
    assert hub.sent(files[FIRST]) - before == len(files[FIRST]) - offset
    lines = [json.loads(line) for line in output.splitlines()]
    told = [line for line in lines if line["message"] == "fetching"]
    assert told[-1]["bytes"] == told[-1]["total_bytes"] == sum(map(len, wanted(files).values()))
    assert told[-1]["files"] == told[-1]["total_files"]


def test_a_process_without_a_request_reports_that(volume: Volume) -> None:
    log = volume.places.termination_log
    found = subprocess.run(
        [sys.executable, "-m", "shardwright.fetching", "--termination-log", str(log)],
        env={name: value for name, value in os.environ.items() if name != ENV_REQUEST},
        capture_output=True,
        check=False,
    )
    assert found.returncode == 1
    report = decode(Report, log.read_text())
    assert (report.outcome, report.reason) == ("Permanent", "ToolFailed")
    assert ENV_REQUEST in report.message
