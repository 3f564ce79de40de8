"""What real nodes are made of, as far as it needs no root: addresses, fleets, files, images."""

from __future__ import annotations

import json
import tarfile
from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from shardwright.api.resource import LLMDeployment
from shardwright_sandbox import SandboxConfig, SandboxError
from shardwright_sandbox.cli import REAL_PRODUCT
from shardwright_sandbox.config import Layout
from shardwright_sandbox.fleet import MAX_REAL, Pool, Taint, load_fleet, parse_fleet, real_pool
from shardwright_sandbox.real import files, host, record, volumes
from shardwright_sandbox.real.addresses import RANGE, SLOTS, Addresses
from shardwright_sandbox.real.archive import Image, Layer, write_archive
from shardwright_sandbox.real.folder import NodeFolder
from shardwright_sandbox.real.start import REAL_LABEL

FLEETS = Path(__file__).parents[2] / "sandbox" / "fleets"


def test_no_two_slots_share_an_address_and_no_two_nodes_a_range() -> None:
    slots = [Addresses(slot) for slot in range(SLOTS)]
    for one, other in combinations(slots, 2):
        assert not one.network.overlaps(other.network)
    for slot in slots:
        assert slot.network.subnet_of(RANGE)
        parts: list[IPv4Network] = [slot.nodes, *(slot.pods(index) for index in range(MAX_REAL))]
        for one, other in combinations(parts, 2):
            assert not one.overlaps(other)
        single = [slot.host, slot.dns, *(slot.node(index) for index in range(MAX_REAL))]
        assert len(set(single)) == len(single)
        assert all(address in slot.nodes for address in single)
        assert len(slot.host_link) <= 15  # the kernel's limit for names of interfaces


def test_a_real_pool_says_only_what_a_real_node_does_not_tell_itself() -> None:
    good = {"name": "r", "count": 2, "real": True, "gpu": {"product": "NVIDIA-H200"}, "zone": "a"}
    fleet = parse_fleet({"pools": [good, {"name": "s", "count": 1}]}, "here")
    assert [pool.name for pool in fleet.real] == ["r"]
    assert [pool.name for pool in fleet.simulated] == ["s"]
    with pytest.raises(SandboxError, match="capacity: the kubelet of a real node tells that"):
        parse_fleet({"pools": [{**good, "capacity": {"nvidia.com/gpu": 9}}]}, "here")
    with pytest.raises(SandboxError, match="whole cores"):
        parse_fleet({"pools": [{**good, "cpu": "500m"}]}, "here")
    with pytest.raises(SandboxError, match="whole GPUs only"):
        parse_fleet({"pools": [{**good, "gpu": {"product": "NVIDIA-H200", "dra": True}}]}, "here")
    with pytest.raises(SandboxError, match="14 are the limit"):
        parse_fleet({"pools": [{**good, "count": 15}]}, "here")


def test_the_model_of_the_readme_runs_on_real_nodes_only() -> None:
    body = yaml.safe_load((FLEETS.parent / "tiny.yaml").read_text(encoding="utf-8"))
    spec = LLMDeployment.model_validate(body).spec
    assert spec.gpu is not None
    assert spec.gpu.product == REAL_PRODUCT
    assert spec.placement.node_selector == {REAL_LABEL: "true"}


def test_the_sandboxs_real_pools_are_real_and_each_kubelet_has_its_own_user() -> None:
    with pytest.raises(SandboxError, match="h100 is simulated"):
        SandboxConfig(real=load_fleet(FLEETS / "demo.yaml").pools[:1])
    config = SandboxConfig(real=(real_pool(2),))
    assert config.all_users["system:node:real-1"] == ("system:nodes",)
    with pytest.raises(SandboxError, match="16 nodes in all pools, 14 are the limit"):
        SandboxConfig(real=(real_pool(8), real_pool(8, name="more")))
    with pytest.raises(SandboxError, match="a pool real already"):
        parse_fleet({"pools": [{"name": "real", "count": 1}]}, "here").and_pool(real_pool(1))
    assert "system:kube-proxy" not in SandboxConfig().all_users
    assert config.fingerprint() != SandboxConfig(real=(real_pool(3),)).fingerprint()
    assert config.fingerprint() == SandboxConfig(real=(real_pool(2),)).fingerprint()


def test_the_kubelets_settings_follow_the_sandboxs(tmp_path: Path) -> None:
    pool = Pool(name="r", count=1, real=True, pods=7, taints=(Taint(key="k", value="v"),))
    config = SandboxConfig(node_grace_seconds=12, real=(pool,))
    folder = NodeFolder(tmp_path)
    settings = yaml.safe_load(files.kubelet(config, pool, Addresses(3), folder))
    assert settings["nodeLeaseDurationSeconds"] == 6
    assert settings["clusterDNS"] == ["198.18.48.2"]
    assert settings["registerWithTaints"] == [{"key": "k", "value": "v", "effect": "NoSchedule"}]
    assert settings["maxPods"] == 7
    ranges = json.loads(files.cni(Addresses(3), 1))["plugins"][0]["ipam"]["ranges"]
    assert ranges == [[{"subnet": "198.18.50.0/24"}]]


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "real.json"
    assert record.read(path) is None
    node = record.NodeRecord("real-0", 0, 8, {"kubelet": ["kubelet", "--config=x"]})
    record.write(path, record.Record(5, (node,)))
    assert record.read(path) == record.Record(5, (node,))


def test_two_sandboxes_have_two_cgroups(tmp_path: Path) -> None:
    names = {record.cgroup_name(Layout(tmp_path / name)) for name in ("a", "b")}
    assert len(names) == 2


def test_only_a_file_system_of_its_own_is_filled(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="would fill the machine's disk"):
        volumes.volume(tmp_path).fill()
    assert list(tmp_path.iterdir()) == []


def test_an_image_is_the_same_for_the_same_files_and_may_leave_a_layer_out(tmp_path: Path) -> None:
    layers = []
    for name in ("base", "top"):
        file = tmp_path / name
        file.write_text(name)
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            tar.add(file, name)
        layers.append(tmp_path / f"{name}.tar")
    image = Image("example.com/a:1", tuple(map(Layer.of, layers)), {"B": "2", "A": "1"}, ("run",))
    for name in ("one", "other"):
        write_archive(tmp_path / name, [image], layers[1:])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    with tarfile.open(tmp_path / "one") as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(name)
            assert member is not None
            return member.read()

        (entry,) = json.loads(read("index.json"))["manifests"]
        manifest = json.loads(read("blobs/" + entry["digest"].replace(":", "/")))
        config = json.loads(read("blobs/" + manifest["config"]["digest"].replace(":", "/")))
        blobs = [name for name in tar.getnames() if name.startswith("blobs/")]
    assert entry["annotations"]["io.containerd.image.name"] == "example.com/a:1"
    assert config["config"] == {"Env": ["A=1", "B=2"], "Cmd": ["run"], "WorkingDir": "/"}
    assert [layer["digest"] for layer in manifest["layers"]] == config["rootfs"]["diff_ids"]
    assert len(blobs) == 3  # manifest, configuration and the one layer


@pytest.mark.parametrize(
    ("platform", "user", "capabilities", "reason"),
    [
        ("darwin", 0, "1ffffffffff", "need Linux"),
        ("linux", 1000, "0", "need root"),
        ("linux", 0, "a80425fb", "CAP_NET_ADMIN and CAP_SYS_ADMIN"),  # docker's default
        ("linux", 0, "1fffeffffff", ""),
    ],
)
def test_a_machine_that_cannot_run_real_nodes_is_told_why(
    monkeypatch: pytest.MonkeyPatch, platform: str, user: int, capabilities: str, reason: str
) -> None:
    monkeypatch.setattr(host.sys, "platform", platform)
    monkeypatch.setattr(host.os, "geteuid", lambda: user)
    monkeypatch.setattr(host, "_status", lambda _: capabilities)
    told = host.unfit()
    assert reason in told
    assert bool(told) == bool(reason)


def test_what_is_not_installed_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "unfit", lambda: "")
    monkeypatch.setattr(host, "_found", lambda name: None if name == "runc" else f"/bin/{name}")
    monkeypatch.setattr(host, "_cni", lambda: Path("/cni"))
    with pytest.raises(SandboxError, match=r"need runc, .*shardwright_sandbox tools"):
        host.require()
