"""s3://: listings in pages, signatures, checksums of every kind, and what a refusal tells."""

from __future__ import annotations

import base64
import hashlib
import shutil
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from tests.fetching.models import SHARDS, Files, model, safetensors, wanted
from tests.fetching.s3_server import BUCKET, BreakingWire, S3Server, interpreter
from tests.fetching.volume import Volume

pytestmark = pytest.mark.skipif(
    not interpreter(),
    reason="there is no moto: `make install` puts it into .venv-moto",
)

PREFIX = "llama/tiny-v1"
URI = f"s3://{BUCKET}/{PREFIX}"
FIRST, SECOND = SHARDS
# Computed here by other libraries, or bit by bit, than in the code under test.
CHECKSUMS = [
    ("sha256", lambda data: hashlib.sha256(data).digest()),
    ("sha1", lambda data: hashlib.sha1(data, usedforsecurity=False).digest()),
    ("crc32", lambda data: zlib.crc32(data).to_bytes(4, "big")),
    ("crc32c", lambda data: reflected_crc(data, 0x82F63B78, 4)),
    ("crc64nvme", lambda data: reflected_crc(data, 0x9A6C9329AC4BC9B5, 8)),
]


def reflected_crc(data: bytes, polynomial: int, size: int) -> bytes:
    """A CRC with reflected bits, begun and ended with all ones: CRC-32C (RFC 3720), CRC-64/NVME."""
    ones = (1 << 8 * size) - 1
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
        table.append(value)
    value = ones
    for byte in data:
        value = value >> 8 ^ table[(value ^ byte) & 0xFF]
    return (value ^ ones).to_bytes(size, "big")


def test_the_checksums_of_these_tests_are_the_standards_own() -> None:
    """The check values of the catalogue of CRCs (reveng.sourceforge.io/crc-catalogue)."""
    assert reflected_crc(b"123456789", 0x82F63B78, 4).hex() == "e3069283"
    assert reflected_crc(b"123456789", 0x9A6C9329AC4BC9B5, 8).hex() == "ae8b14860a799888"


@pytest.fixture(scope="module")
def moto() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.close()


@pytest.fixture
def s3(moto: S3Server) -> Iterator[BreakingWire]:
    wire = BreakingWire(moto.port)
    yield wire
    wire.close()


def env(s3: BreakingWire, **more: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "AKIAEXAMPLE", "AWS_SECRET_ACCESS_KEY": "s3cr3t/k+y"}
    return {"AWS_ENDPOINT_URL": s3.url, **keys, **more}


def put(moto: S3Server, files: Files, prefix: str = PREFIX) -> None:
    for name, data in files.items():
        moto.put(f"{prefix}/{name}", data)


def test_a_prefix_is_fetched_over_several_pages(
    moto: S3Server, s3: BreakingWire, volume: Volume
) -> None:
    files = model()
    put(moto, files)
    moto.put(f"{PREFIX}/folder/", b"")
    moto.put(f"{PREFIX}-other/config.json", b"{}")
    report = volume.fetch(URI, env(s3))
    assert report.outcome == "Done", report.message
    assert volume.files(URI) == wanted(files)
    assert report.facts is not None
    assert sum("list-type=2" in head for head in s3.requests) > 2
    [listed] = volume.said("listed")
    assert listed["without_checksum"] == []
    assert "awscrt" in volume.manifest(URI).tools
    text = str(volume.log) + str(report)
    assert "s3cr3t" not in text


def test_a_broken_connection_is_gone_on_with(
    moto: S3Server, s3: BreakingWire, volume: Volume
) -> None:
    files = wanted(model(6 * 2**20))
    put(moto, files)
    s3.cut(FIRST, 2_500_000, 1_500_000)
    report = volume.fetch(URI, env(s3))
    assert report.outcome == "Done", report.message
    assert volume.files(URI) == files
    assert s3.ranges(FIRST) == ["", "bytes=2500000-", "bytes=4000000-"]


def test_signatures_are_those_that_aws_itself_makes(
    moto: S3Server, s3: BreakingWire, volume: Volume
) -> None:
    files = wanted(model(2**20))
    # Characters that a canonical request spells in its own way.
    odd = {"chat templates/tool=use (1)+~.json": b"{}", "tokenizer/ärger.json": b"{}"}
    put(moto, files)
    for name, data in odd.items():
        moto.put(f"{PREFIX}/{quote(name)}", data)
    key_id, secret = moto.enforce()
    try:
        keys = {"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": secret}
        s3.cut(FIRST, 1_100_000)
        right = volume.fetch(URI, env(s3, **keys))
        assert right.outcome == "Done", right.message
        assert volume.files(URI) == {**files, **odd}
        other = f"s3://{BUCKET}/{PREFIX}/"
        wrong = volume.fetch(other, env(s3, AWS_ACCESS_KEY_ID=key_id))
    finally:
        moto.relax()
    assert (wrong.outcome, wrong.reason) == ("Permanent", "AccessDenied")
    assert "AWS_SECRET_ACCESS_KEY" in wrong.message
    assert "model.secretRef" in wrong.message
    assert "s3cr3t" not in wrong.message


@pytest.mark.parametrize("algorithm", ["", "SHA256"])
def test_an_object_uploaded_in_parts_is_checked_by_its_parts(
    moto: S3Server, s3: BreakingWire, volume: Volume, algorithm: str
) -> None:
    prefix = f"parts-{algorithm.lower() or 'etag'}"
    files = wanted(model(2**20))
    files[FIRST] = safetensors(13 * 2**20, 5)
    uri = f"s3://{BUCKET}/{prefix}"
    put(moto, files, prefix)
    moto.put_parts(f"{prefix}/{FIRST}", files[FIRST], 5 * 2**20, algorithm)
    report = volume.fetch(uri, env(s3))
    assert report.outcome == "Done", report.message
    assert volume.files(uri) == files
    [listed] = volume.said("listed")
    assert listed["without_checksum"] == []


@pytest.mark.parametrize(("algorithm", "compute"), CHECKSUMS)
def test_the_checksum_that_s3_keeps_is_held_against_the_bytes(
    moto: S3Server,
    s3: BreakingWire,
    volume: Volume,
    algorithm: str,
    compute: Callable[[bytes], bytes],
) -> None:
    prefix = f"sum-{algorithm}"
    files = wanted(model(2**20))
    put(moto, files, prefix)
    for data in (b"something else", files[FIRST]):
        told = base64.b64encode(compute(data)).decode()
        kept = {
            f"x-amz-checksum-{algorithm}": told,
            "x-amz-sdk-checksum-algorithm": algorithm.upper(),
        }
        moto.put(f"{prefix}/{FIRST}", files[FIRST], kept)
        report = volume.fetch(f"s3://{BUCKET}/{prefix}", env(s3))
        if data != files[FIRST]:
            assert (report.outcome, report.reason) == ("Environment", "ChecksumMismatch")
            assert f"{algorithm} is" in report.message
            assert FIRST not in volume.files(f"s3://{BUCKET}/{prefix}")
            shutil.rmtree(volume.store / "shardwright")
    assert report.outcome == "Done", report.message


def test_an_object_that_is_written_anew_between_attempts_is_noticed(
    moto: S3Server, s3: BreakingWire, volume: Volume
) -> None:
    old, new = wanted(model()), wanted(model(2 * 2**20))
    uri = f"s3://{BUCKET}/moving"
    put(moto, old, "moving")
    s3.cut(SECOND, *([100_000] * volume.patience.tries))
    assert volume.fetch(uri, env(s3)).reason == "SourceUnavailable"
    put(moto, new, "moving")
    report = volume.fetch(uri, env(s3))
    assert report.outcome == "Done", report.message
    assert volume.files(uri) == new
    assert volume.said("the source has changed and is listed anew")


def test_what_is_not_there_is_a_failure_for_good(s3: BreakingWire, volume: Volume) -> None:
    report = volume.fetch(f"s3://{BUCKET}/nowhere", env(s3))
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")
    assert "no object below this prefix" in report.message
    report = volume.fetch("s3://no-such-bucket/nowhere", env(s3))
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")
    assert "no such bucket" in report.message


def test_a_public_bucket_needs_no_keys(
    moto: S3Server, s3: BreakingWire, volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in wanted(model(2**18)).items():
        moto.put(f"public/{name}", data, {"x-amz-acl": "public-read"})
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(volume.root))
    report = volume.fetch(f"s3://{BUCKET}/public", {"AWS_ENDPOINT_URL": s3.url})
    assert report.outcome == "Done", report.message
    assert volume.said("no keys for S3 found, requests are not signed")
    assert not any("authorization:" in head.lower() for head in s3.requests)
