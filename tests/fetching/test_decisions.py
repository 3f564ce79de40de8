"""What fetching decides from plain data: uris, which files, which checksum, how long to wait."""

from __future__ import annotations

import base64
import hashlib
import os
from datetime import UTC, datetime

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.fetching.served import Background, Faults
from tests.fetching.volume import Volume

from shardwright.fetching.bucket import Bucket
from shardwright.fetching.bucket_checksums import checksum_of
from shardwright.fetching.digests import Meter
from shardwright.fetching.failures import FetchError, retry_after
from shardwright.fetching.logins import login_for
from shardwright.fetching.remote import Digest, RemoteFile, is_plain, refuse_names
from shardwright.fetching.selection import choose
from shardwright.fetching.uris import (
    BucketFolder,
    ClaimFolder,
    HubModel,
    RegistryArtifact,
    parse,
)
from shardwright.fetching.wire import Wire, shown

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHA256 = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("hf://meta-llama/Llama-3.1-8B", HubModel("meta-llama/Llama-3.1-8B", "main")),
        ("hf://a/b@refs/pr/1", HubModel("a/b", "refs/pr/1")),
        (f"hf://a/b@{COMMIT}", HubModel("a/b", COMMIT)),
        ("pvc://models/llama/8b/", ClaimFolder("models", "llama/8b")),
        ("s3://bucket.name/a/b/", BucketFolder("bucket.name", "a/b")),
        ("oci://ghcr.io/a/b", RegistryArtifact("ghcr.io", "a/b", "latest")),
        ("oci://localhost:5000/a:v1.0", RegistryArtifact("localhost:5000", "a", "v1.0")),
        (f"oci://ghcr.io/a/b@{SHA256}", RegistryArtifact("ghcr.io", "a/b", SHA256)),
    ],
)
def test_the_forms_of_a_uri(uri: str, expected: object) -> None:
    assert parse(uri) == expected


@pytest.mark.parametrize(
    "uri",
    [
        *("http://a/b", "hf://a", "hf://a/b@", "pvc://claim", "s3://bucket", "hf://a/../b"),
        *("oci://ghcr.io", "oci://ghcr.io/a:", "oci://ghcr.io/a@v1", f"oci://ghcr.io/a:{SHA256}"),
    ],
)
def test_what_is_no_uri_is_refused_with_the_forms(uri: str) -> None:
    with pytest.raises(FetchError, match=r"hf://org/name@revision|must not contain"):
        parse(uri)


def test_what_cannot_move_is_known() -> None:
    assert HubModel("a/b", COMMIT).pinned
    assert not HubModel("a/b", COMMIT[:10]).pinned
    assert RegistryArtifact("r", "a", SHA256).pinned
    assert not RegistryArtifact("r", "a", "v1").pinned


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1) for name in names]


@pytest.mark.parametrize(
    ("there", "weights"),
    [
        (("model.safetensors",), {"model.safetensors"}),
        # The same weights as one file and as shards.
        (
            ("model.safetensors", "model-00001-of-00002.safetensors"),
            {"model-00001-of-00002.safetensors"},
        ),
        (
            ("consolidated.safetensors", "model-00001-of-00001.safetensors"),
            {"model-00001-of-00001.safetensors"},
        ),
        (("consolidated-00001-of-00001.safetensors",), {"consolidated-00001-of-00001.safetensors"}),
        (
            ("model.safetensors", "original/model.safetensors", "metal/model.bin"),
            {"model.safetensors"},
        ),
        (("model.safetensors", "pytorch_model.bin", "x.gguf"), {"model.safetensors"}),
    ],
)
def test_weights_are_fetched_once_and_never_as_pickles(
    there: tuple[str, ...], weights: set[str]
) -> None:
    chosen = choose(files("config.json", *there), "hf://a/b")
    assert {file.name for file in chosen} == {"config.json", *weights}


def test_tokenizers_templates_code_and_licences_come_along_and_texts_come_first() -> None:
    texts = [
        *("LICENSE", "USE_POLICY.md", "additional_chat_templates/tools.jinja", "config.json"),
        *("configuration_x.py", "merges.txt", "tekken.json", "tokenizer.model"),
        *("tokenizer.model.v3", "vocab.tiktoken"),
    ]
    left = [
        *("README.md", "figure.png", ".gitattributes", "pytorch_model.bin.index.json"),
        *("tokenizer.bin", "training_args.bin", "onnx/model.onnx"),
    ]
    chosen = choose(files(*left, "model.safetensors", *texts), "hf://a/b")
    assert [file.name for file in chosen] == [*sorted(texts), "model.safetensors"]


@pytest.mark.parametrize(
    ("there", "reason", "words"),
    [
        (("model.safetensors",), "ModelNotFound", "no config.json"),
        (("config.json", "a.gguf"), "ModelNotFound", "a.gguf"),
        (("config.json", "pytorch_model.bin"), "UnsafeWeights", "executes"),
        (("config.json", "lora/x.safetensors", "a.pt"), "UnsafeWeights", "a.pt"),
    ],
)
def test_models_that_cannot_be_served_are_refused(
    there: tuple[str, ...], reason: str, words: str
) -> None:
    with pytest.raises(FetchError, match=words) as caught:
        choose(files(*there), "hf://a/b")
    assert (caught.value.outcome, caught.value.reason) == ("Permanent", reason)


@given(st.text(max_size=40))
def test_a_plain_name_never_leaves_its_folder(name: str) -> None:
    if is_plain(name):
        path = os.path.normpath(os.path.join("/folder", name))  # noqa: PTH118 - as a system would
        assert path.startswith("/folder/")
        assert "\0" not in name


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/passwd", "a/../../b", "a//b", "./a", "a/", "a\\b", "a\nb", "a\0b", "x" * 300),
        *("shardwright-manifest.json", ".shardwright-fetch.json", "\u202eexe.json"),
    ],
)
def test_names_that_are_not_plain(name: str) -> None:
    assert not is_plain(name)


def test_a_name_that_stands_twice_is_refused() -> None:
    with pytest.raises(FetchError, match="two files named a"):
        refuse_names(tuple(files("a", "a")), "oci://r/a")


NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("", None),
        ("0", 0),
        (" 30 ", 30),
        ("9" * 40, 999_999_999),
        ("-1", None),
        ("soon", None),
        ("Thu, 01 Jan 2026 12:01:30 GMT", 90),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0),
    ],
)
def test_the_wait_that_a_server_asks_for(text: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": text}, NOW) == seconds


MD5 = "0123456789abcdef0123456789abcdef"
TEXT = base64.b64encode(b"\1" * 32).decode()
CRC = base64.b64encode(b"\2" * 8).decode()
FULL = {"x-amz-checksum-type": "FULL_OBJECT"}
COMPOSITE = {"x-amz-checksum-type": "COMPOSITE"}


@pytest.mark.parametrize(
    ("headers", "etag", "part_bytes", "expected"),
    [
        ({}, MD5, 0, Digest("md5", MD5)),
        ({"x-amz-server-side-encryption": "AES256"}, MD5, 0, Digest("md5", MD5)),
        ({"x-amz-server-side-encryption": "aws:kms"}, MD5, 0, None),
        ({"x-amz-server-side-encryption-customer-algorithm": "AES256"}, MD5, 0, None),
        ({}, "not-an-md5", 0, None),
        ({"x-amz-checksum-sha256": TEXT}, MD5, 0, Digest("sha256", "01" * 32)),
        # The whole object's, although it was uploaded in parts.
        (
            {"x-amz-checksum-crc64nvme": CRC, **FULL},
            f"{MD5}-3",
            40,
            Digest("crc64nvme", "02" * 8),
        ),
        ({}, f"{MD5}-3", 40, Digest("md5", MD5, 40)),
        # Parts of different sizes: nothing can be said.
        ({}, f"{MD5}-3", 30, None),
        ({}, f"{MD5}-3", 0, None),
        (
            {"x-amz-checksum-sha256": f"{TEXT}-3", **COMPOSITE},
            f"{MD5}-3",
            40,
            Digest("sha256", "01" * 32, 40),
        ),
        ({"x-amz-checksum-sha256": f"{TEXT}-3", **COMPOSITE}, f"{MD5}-3", 30, None),
        ({"x-amz-checksum-sha256": "!"}, MD5, 0, Digest("md5", MD5)),
    ],
)
def test_which_checksum_of_an_object_can_be_recomputed(
    headers: dict[str, str], etag: str, part_bytes: int, expected: Digest | None
) -> None:
    assert checksum_of(headers, etag, 100, part_bytes) == expected


@given(st.binary(max_size=200), st.integers(1, 60), st.integers(1, 50))
def test_a_checksum_of_parts_does_not_depend_on_how_the_bytes_come(
    data: bytes, part_bytes: int, piece: int
) -> None:
    parts = [data[at : at + part_bytes] for at in range(0, len(data), part_bytes)]
    inner = b"".join(hashlib.sha256(part).digest() for part in parts)
    expected = Digest("sha256", hashlib.sha256(inner).hexdigest(), part_bytes)
    meter = Meter(len(data), expected)
    for at in range(0, len(data), piece):
        meter.update(data[at : at + piece])
    assert meter.difference() == ""
    assert meter.sha256 == hashlib.sha256(data).hexdigest()


def test_a_buckets_address() -> None:
    wire = Wire(1)
    for region, folder, expected in (
        ("eu-west-1", BucketFolder("b", "p"), "https://b.s3.eu-west-1.amazonaws.com/p/a%20b"),
        ("us-east-1", BucketFolder("b.c", "p"), "https://s3.us-east-1.amazonaws.com/b.c/p/a%20b"),
        ("cn-north-1", BucketFolder("b", "p"), "https://b.s3.cn-north-1.amazonaws.com.cn/p/a%20b"),
    ):
        assert Bucket(folder, wire, {"AWS_REGION": region})._url("p/a b") == expected
    found = Bucket(BucketFolder("b", "p"), wire, {"AWS_ENDPOINT_URL": "http://minio:9000/"})
    assert found._url("p/a") == "http://minio:9000/b/p/a"


def test_a_bucket_in_another_region_is_asked_there(volume: Volume) -> None:
    scopes = []

    async def listing(request: web.Request) -> web.Response:
        scope = request.headers["Authorization"].split("Credential=")[1].split("/")[2]
        scopes.append(scope)
        if scope != "eu-west-1":
            return web.Response(status=301, headers={"x-amz-bucket-region": "eu-west-1"})
        return web.Response(text="<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")

    app = web.Application()
    app.router.add_get("/b", listing)
    server = Background(app)
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    report = volume.fetch("s3://b/p", {"AWS_ENDPOINT_URL": server.url, **keys})
    server.close()
    assert scopes == ["us-east-1", "eu-west-1"]
    assert report.reason == "ModelNotFound"


def test_a_proxy_is_used_unless_it_is_not_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults()

    async def proxied(request: web.Request) -> web.Response:
        faults.take(request)
        return web.Response(text="through the proxy")

    app = web.Application()
    app.router.add_get("/{rest:.*}", proxied)
    server = Background(app)
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    wire = Wire(5)
    assert wire.ask("http://hub.invalid/x", {}).data == b"through the proxy"
    assert len(faults.requests) == 1
    direct = wire.ask(f"{server.url}/y", {})
    assert direct.status == 200
    wire.close()
    server.close()


def test_an_address_is_shown_without_what_is_secret_in_it() -> None:
    assert (
        shown("https://u:p@h.example:8443/a/b?X-Amz-Signature=s#f") == "https://h.example:8443/a/b"
    )


@pytest.mark.parametrize(
    ("registry", "name"),
    [
        ("ghcr.io", "ghcr.io"),
        ("ghcr.io", "https://ghcr.io"),
        ("ghcr.io", "https://ghcr.io/v2/"),
        ("docker.io", "https://index.docker.io/v1/"),
    ],
)
def test_a_docker_config_names_a_registry_in_several_ways(registry: str, name: str) -> None:
    entry = f'{{"username": "ann", "password": "{name}"}}'
    text = f'{{"auths": {{"other.io": {{"auth": ""}}, "{name}": {entry}}}}}'
    login = login_for(registry, {".dockerconfigjson": text})
    assert login is not None
    assert (login.username, login.password) == ("ann", name)
    assert "password" not in repr(login)
    assert login_for("quay.io", {".dockerconfigjson": text}) is None
