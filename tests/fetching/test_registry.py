"""oci://: layers as files, tokens, redirects, ranges, and what a refusal tells the user."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest
from tests.fetching.models import SHARDS, model, wanted
from tests.fetching.registry_server import RegistryServer
from tests.fetching.served import Fault
from tests.fetching.volume import Volume

FIRST, SECOND = SHARDS


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    server = RegistryServer()
    yield server
    server.close()


def docker_config(registry: RegistryServer, login: str) -> str:
    pair = base64.b64encode(login.encode()).decode()
    return json.dumps({"auths": {f"http://{registry.host}": {"auth": pair}}})


def test_a_tag_is_fetched_at_its_digest(registry: RegistryServer, volume: Volume) -> None:
    files = wanted(model())
    digest = registry.push(files)
    report = volume.fetch(registry.uri(":v1"), {})
    assert report.outcome == "Done", report.message
    assert report.commit == digest
    assert volume.files(registry.uri(":v1")) == files
    # A token is asked for once, not for each blob.
    assert registry.granted == 1


def test_a_digest_is_fetched_as_it_is(registry: RegistryServer, volume: Volume) -> None:
    digest = registry.push(wanted(model()))
    registry.push(wanted(model(2**20)))
    report = volume.fetch(registry.uri(f"@{digest}"), {})
    assert (report.outcome, report.commit) == ("Done", digest)


def test_an_index_of_one_manifest_is_followed(registry: RegistryServer, volume: Volume) -> None:
    digest = registry.push(wanted(model()))
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json"}
    entries = [{"digest": digest, "size": 1, "mediaType": "m"}]
    registry.put({**index, "manifests": entries}, "one")
    assert volume.fetch(registry.uri(":one"), {}).commit == digest
    registry.put({**index, "manifests": entries * 2}, "two")
    report = volume.fetch(registry.uri(":two"), {})
    assert report.outcome == "Permanent"
    assert "name the digest of one" in report.message


def test_a_broken_connection_is_gone_on_with(registry: RegistryServer, volume: Volume) -> None:
    files = wanted(model(6 * 2**20))
    registry.push(files)
    data = files[FIRST]
    path = registry.path(data)
    registry.store.once(path, Fault(cut=3_000_000))
    report = volume.fetch(registry.uri(":v1"), {})
    assert report.outcome == "Done", report.message
    assert registry.sent(data) == len(data)
    assert registry.store.asked_ranges(path) == ["", "bytes=3000000-"]


def test_a_signed_address_that_has_run_out_is_asked_for_anew(
    registry: RegistryServer, volume: Volume
) -> None:
    files = wanted(model(2**18))
    registry.push(files)
    # A store's 403 is not the registry's.
    registry.store.once(registry.path(files[FIRST]), Fault(status=403), Fault(status=403))
    report = volume.fetch(registry.uri(":v1"), {})
    assert report.outcome == "Done", report.message
    assert len(volume.said("trying again")) == 2


def test_a_wrong_blob_is_fetched_again(registry: RegistryServer, volume: Volume) -> None:
    files = wanted(model())
    registry.push(files)
    path = registry.path(files[SECOND])
    registry.store.once(path, Fault(flip=100_000))
    report = volume.fetch(registry.uri(":v1"), {})
    assert report.outcome == "Done", report.message
    assert volume.files(registry.uri(":v1")) == files
    assert registry.sent(files[SECOND]) == 2 * len(files[SECOND])


def test_a_token_that_runs_out_under_way_is_renewed(
    registry: RegistryServer, volume: Volume
) -> None:
    files = wanted(model())
    registry.push(files)
    registry.revoke_after = 3
    report = volume.fetch(registry.uri(":v1"), {})
    assert report.outcome == "Done", report.message
    assert registry.granted == 2


@pytest.mark.parametrize("basic_only", [False, True])
@pytest.mark.parametrize("where", ["variables", "DOCKER_AUTH_CONFIG", ".dockerconfigjson"])
def test_a_login_is_taken_from_the_secret(
    registry: RegistryServer, volume: Volume, where: str, *, basic_only: bool
) -> None:
    registry.push(wanted(model(2**18)))
    registry.login, registry.basic_only = "ann:p4ssw0rd:with:colons", basic_only
    if where == "variables":
        env = {"OCI_USERNAME": "ann", "OCI_PASSWORD": "p4ssw0rd:with:colons"}
    else:
        env = {where: docker_config(registry, registry.login)}
    report = volume.fetch(registry.uri(":v1"), env)
    assert report.outcome == "Done", report.message
    assert "p4ssw0rd" not in str(volume.log) + str(report)
    assert not any(token in str(volume.log) for token in registry.tokens)


def test_a_private_artifact_says_which_keys_the_secret_needs(
    registry: RegistryServer, volume: Volume
) -> None:
    registry.push(wanted(model()))
    registry.login = "ann:right"
    report = volume.fetch(registry.uri(":v1"), {})
    assert (report.outcome, report.reason) == ("Permanent", "AccessDenied")
    assert "OCI_USERNAME" in report.message
    wrong = volume.fetch(registry.uri(":v1"), {"OCI_USERNAME": "ann", "OCI_PASSWORD": "wr0ng"})
    assert (wrong.outcome, wrong.reason) == ("Permanent", "AccessDenied")
    assert "'ann'" in wrong.message
    assert "wr0ng" not in wrong.message
    broken = volume.fetch(registry.uri(":v1"), {"DOCKER_AUTH_CONFIG": '{"auths": {"p4ss'})
    assert (broken.outcome, broken.reason) == ("Permanent", "AccessDenied")
    assert "p4ss" not in broken.message + str(volume.log)


def test_what_is_not_there_is_a_failure_for_good(registry: RegistryServer, volume: Volume) -> None:
    registry.push(wanted(model()))
    report = volume.fetch(registry.uri(":absent"), {})
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")


def test_a_busy_registry_is_asked_again(registry: RegistryServer, volume: Volume) -> None:
    registry.push(wanted(model(2**18)))
    registry.faults.once("/manifests/v1", Fault(status=429, headers={"Retry-After": "0"}))
    registry.faults.once("/manifests/v1", Fault(status=503))
    assert volume.fetch(registry.uri(":v1"), {}).outcome == "Done"
    assert len(volume.said("trying again")) == 2


@pytest.mark.parametrize(
    "layer",
    [
        {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"},
        {"annotations": {}},
        {
            "annotations": {
                "org.opencontainers.image.title": "model",
                "io.deis.oras.content.unpack": "true",
            }
        },
    ],
)
def test_layers_that_are_no_files_are_refused(
    registry: RegistryServer, volume: Volume, layer: dict[str, object]
) -> None:
    registry.push(wanted(model(2**18)), layer=layer)
    report = volume.fetch(registry.uri(":v1"), {})
    assert (report.outcome, report.reason) == ("Permanent", "ModelNotFound")
    assert "one by one" in report.message


def test_a_moved_tag_does_not_mix_two_models(registry: RegistryServer, volume: Volume) -> None:
    old, new = wanted(model()), wanted(model(2 * 2**20))
    first = registry.push(old)
    path = registry.path(old[SECOND])
    registry.faults.always(path, Fault(status=503))
    assert volume.fetch(registry.uri(":v1"), {}).reason == "SourceUnavailable"
    registry.push(new)
    registry.faults.always(path, None)
    report = volume.fetch(registry.uri(":v1"), {})
    assert (report.outcome, report.commit) == ("Done", first)
    assert volume.files(registry.uri(":v1")) == old
