"""`shardwright plan`: what it says of ten well-known models, in every form, and what it refuses.

The texts stand whole in tests/golden/plans; UPDATE_GOLDEN=1 writes them anew. Read them after.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from typer.testing import CliRunner, Result

from shardwright.cli.app import app
from shardwright.sizing.result import from_data, to_data

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/plans"
H100 = "NVIDIA-H100-80GB-HBM3"

# name → model, nodes, what else the spec says
PLANS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "llama-3.1-8b-l40s": (
        "meta-llama/Llama-3.1-8B-Instruct",
        [{"product": "NVIDIA-L40S", "count": 2, "gpus": 8}],
        {},
    ),
    "llama-3.3-70b-h100": (
        "meta-llama/Llama-3.3-70B-Instruct",
        [{"product": H100, "count": 2, "gpus": 8, "fabric": "RDMA"}],
        {"workload": {"objective": "Latency", "concurrency": 8}},
    ),
    "llama-3.1-70b-h200": (
        "meta-llama/Llama-3.1-70B-Instruct",
        [{"product": "NVIDIA-H200", "count": 1, "gpus": 8}],
        {"workload": {"objective": "Throughput", "concurrency": 256}},
    ),
    "llama-3.1-405b-h100": (
        "meta-llama/Llama-3.1-405B-Instruct",
        [{"product": H100, "count": 2, "gpus": 8, "fabric": "RDMA"}],
        {"quantization": {"weights": "None"}},
    ),
    "mixtral-8x7b-a100": (
        "mistralai/Mixtral-8x7B-Instruct-v0.1",
        [{"product": "NVIDIA-A100-SXM4-80GB", "count": 1, "gpus": 8}],
        {},
    ),
    "qwen2.5-72b-mixed": (
        "Qwen/Qwen2.5-72B-Instruct",
        [
            {"product": H100, "count": 2, "gpus": 8, "fabric": "RDMA"},
            {"product": "NVIDIA-A100-SXM4-80GB", "count": 4, "gpus": 8},
        ],
        {},
    ),
    "qwen3-235b-h100": (
        "Qwen/Qwen3-235B-A22B",
        [{"product": H100, "count": 4, "gpus": 8, "fabric": "RDMA"}],
        {"engine": {"backend": "PyTorch"}, "workload": {"objective": "Throughput"}},
    ),
    "deepseek-r1-h200": (
        "deepseek-ai/DeepSeek-R1",
        [{"product": "NVIDIA-H200", "count": 4, "gpus": 8, "fabric": "RDMA"}],
        {"engine": {"backend": "PyTorch"}},
    ),
    "gpt-oss-120b-h100": (
        "openai/gpt-oss-120b",
        [{"product": H100, "count": 1, "gpus": 8}],
        {"engine": {"backend": "PyTorch"}},
    ),
    "gemma-3-27b-b200": (
        "google/gemma-3-27b-it",
        [{"product": "NVIDIA-B200", "count": 25, "gpus": 8, "fabric": "RDMA"}],
        {"engine": {"backend": "PyTorch"}, "workload": {"objective": "Offline"}},
    ),
}


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - what the tool drew a moment ago


def manifest(model: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "shardwright.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "example"},
        "spec": {"model": {"uri": f"hf://{model}@main"}, **spec},
    }


class Folder:
    """Files of one question, and the command asked of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest(manifest("meta-llama/Llama-3.1-8B"))
        self.nodes([{"product": H100, "count": 1, "gpus": 8}])

    def manifest(self, body: dict[str, Any]) -> None:
        (self.path / "llmd.yaml").write_text(yaml.safe_dump(body), encoding="utf-8")

    def nodes(self, entries: list[dict[str, Any]]) -> None:
        (self.path / "nodes.yaml").write_text(yaml.safe_dump({"nodes": entries}), encoding="utf-8")

    def ask(self, *options: str, command: str = "plan") -> Result:
        os.chdir(self.path)
        return CliRunner().invoke(app, [command, "llmd.yaml", "--nodes", "nodes.yaml", *options])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.chdir(tmp_path)
    return Folder(tmp_path)


@pytest.mark.parametrize("name", PLANS)
def test_ten_well_known_models_read_as_they_did(folder: Folder, name: str) -> None:
    model, nodes, spec = PLANS[name]
    folder.manifest(manifest(model, **spec))
    folder.nodes(nodes)
    result = folder.ask("--output", "plan.txt")
    assert result.exit_code == 0, result.output
    text = (folder.path / "plan.txt").read_text(encoding="utf-8")
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), f"{name}: run with UPDATE_GOLDEN=1"


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_names_choice_runner_up_what_would_change_it_and_memory_left(name: str) -> None:
    text = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    headline = r"^Chosen: .+ · TP \d+.* · \d+ replicas? on .+ \(\d+ GPUs?\)$"
    assert re.search(headline, text, re.MULTILINE)
    assert re.search(r"^Runner-up: ", text, re.MULTILINE)
    changes = text.split("What would change the choice\n")[1].split("\n\n")[0]
    assert changes.strip()
    assert re.search(r"Memory left: of the [\d.]+ GiB of a GPU.*, [\d.]+ are KV cache", text)
    assert "To use it" in text
    assert max(len(line) for line in text.splitlines()) <= 120


class TestForms:
    """The other ways of writing the same plan."""

    def test_json_is_the_choice_and_reads_back_unchanged(self, folder: Folder) -> None:
        data = json.loads(folder.ask("-o", "json").stdout)
        choice = from_data(data)
        assert to_data(choice) == data
        assert choice.chosen is not None
        assert choice.model == "meta-llama/Llama-3.1-8B"

    def test_yaml_says_the_same_as_json(self, folder: Folder) -> None:
        as_json = json.loads(folder.ask("-o", "json").stdout)
        assert yaml.safe_load(folder.ask("-o", "yaml").stdout) == as_json

    def test_svg_is_the_picture(self, folder: Folder) -> None:
        root = parsed(folder.ask("-o", "svg").stdout)
        title = root.findtext("{http://www.w3.org/2000/svg}title", "")
        assert title.startswith("example: 16-bit weights")

    def test_every_number_of_the_picture_stands_in_the_text(self, folder: Folder) -> None:
        folder.nodes([{"product": H100, "count": 2, "gpus": 8, "fabric": "RDMA"}])
        folder.manifest(manifest("meta-llama/Llama-3.1-405B", quantization={"weights": "None"}))
        drawn = parsed(folder.ask("-o", "svg").stdout)
        labels = [e.text or "" for e in drawn.iter("{http://www.w3.org/2000/svg}text")]
        number = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
        text = folder.ask().stdout
        said = set(number.findall(text))
        for label in labels:
            assert set(number.findall(label)) <= said, label

    def test_html_holds_picture_and_text(self, folder: Folder) -> None:
        page = folder.ask("-o", "html").stdout
        assert page.count("<svg") == 1
        for heading in ("Asked", "Why this one", "What would change the choice", "To use it"):
            assert f"<h2>{heading}" in page
        assert "parallelism: {tensor:" in page

    def test_output_writes_a_file_and_prints_nothing_else(self, folder: Folder) -> None:
        result = folder.ask("-o", "svg", "--output", "plan.svg")
        assert result.exit_code == 0
        assert result.stdout == ""
        assert "wrote plan.svg" in result.stderr
        parsed((folder.path / "plan.svg").read_text(encoding="utf-8"))

    def test_what_is_to_be_used_can_be_put_into_the_manifest_and_gives_the_same_plan(
        self, folder: Folder
    ) -> None:
        first = folder.ask().stdout
        lines = first.split("in the manifest's spec\n")[1].split("\n\n")[0]
        fields = yaml.safe_load("\n".join(line.strip() for line in lines.splitlines()))
        folder.manifest(manifest("meta-llama/Llama-3.1-8B", **fields))
        again = from_data(json.loads(folder.ask("-o", "json").stdout)).chosen
        assert again is not None
        assert again.shape.tensor == fields["parallelism"]["tensor"]
        assert again.replicas == fields["replicas"]

    @pytest.mark.parametrize("objective", ["Latency", "Balanced", "Throughput", "Offline"])
    def test_what_is_to_be_used_is_as_fast_as_was_told(
        self, folder: Folder, objective: str
    ) -> None:
        """Its replicas share the load as the figures suppose, or the figures are another plan's."""
        load = {"workload": {"objective": objective, "concurrency": 96}}
        folder.manifest(manifest("meta-llama/Llama-3.1-70B", **load))
        first = folder.ask().stdout
        lines = first.split("in the manifest's spec\n")[1].split("\n\n")[0]
        fields = yaml.safe_load("\n".join(line.strip() for line in lines.splitlines()))
        folder.manifest(manifest("meta-llama/Llama-3.1-70B", **load, **fields))
        speed = re.compile(r"Speed, estimated: .*?\n  ·", re.DOTALL)
        again = folder.ask().stdout
        assert speed.findall(again)[0] == speed.findall(first)[0]

    def test_the_same_question_gives_the_same_bytes(self, folder: Folder) -> None:
        for form in ("text", "json", "yaml", "svg", "html"):
            assert folder.ask("-o", form).stdout == folder.ask("-o", form).stdout


class TestSteps:
    """What has to be done before it serves, and what the nodes lack for it."""

    def ask(self, folder: Folder, command: str, **node: Any) -> str:
        folder.manifest(
            manifest("meta-llama/Llama-3.1-70B", quantization={"weights": "INT4AWQ"}, replicas=1)
        )
        folder.nodes([{"product": H100, "count": 4, "gpus": 2, **node}])
        return " ".join(folder.ask(command=command).stdout.split())

    @pytest.mark.parametrize("command", ["plan", "explain"])
    def test_each_is_told_with_what_it_takes(self, folder: Folder, command: str) -> None:
        text = self.ask(folder, command, gpus=8)
        assert "Before it serves" in text
        assert "Calibrate: INT4AWQ has to be made of the checkpoint's weights." in text
        assert "On one node it takes 3 GPUs, 157.7 GiB" in text
        assert "157.7 GiB of host memory, and writes 36.8 GiB" in text
        assert "Build: the TensorRT backend serves engines built for one GPU product" in text
        assert "Not here" not in text

    @pytest.mark.parametrize("command", ["plan", "explain"])
    def test_what_no_node_can_do_is_told_with_another_way(
        self, folder: Folder, command: str
    ) -> None:
        text = self.ask(folder, command)
        assert "Not here: it takes 3 GPUs of one node, the largest has 2. Instead: take a" in text
        short = self.ask(folder, command, gpus=8, hostMemoryGiB=100)
        assert "Not here: it takes 158 GiB of host memory, the largest node has 100" in short
        assert "serve with the PyTorch backend" in short

    def test_json_holds_them(self, folder: Folder) -> None:
        self.ask(folder, "plan")
        steps = json.loads(folder.ask("-o", "json").stdout)["chosen"]["steps"]
        assert [step["step"] for step in steps] == ["Calibrate", "Build"]
        assert steps[0]["obstacle"] == "takes 3 GPUs of one node, the largest has 2"
        assert set(steps[0]) == {
            *("step", "gpus", "hostBytes", "scratchBytes", "reason", "obstacle", "alternative")
        }

    def test_a_checkpoint_that_is_served_as_it_is_says_so(self, folder: Folder) -> None:
        folder.manifest(manifest("openai/gpt-oss-20b", engine={"backend": "PyTorch"}))
        assert "nothing: the checkpoint is served as it is" in folder.ask().stdout


class TestNonePossible:
    """Exit code 1: the question was understood, and the answer is no."""

    @pytest.fixture
    def hopeless(self, folder: Folder) -> Folder:
        folder.manifest(manifest("meta-llama/Llama-3.1-405B", quantization={"weights": "None"}))
        folder.nodes([{"product": "NVIDIA-L40S", "count": 1, "gpus": 8}])
        return folder

    def test_the_text_says_why(self, hopeless: Folder) -> None:
        result = hopeless.ask()
        assert result.exit_code == 1
        assert "No plan is possible" in result.stdout
        assert "DoesNotFit" in result.stdout
        assert "Chosen:" not in result.stdout

    def test_what_would_help_comes_first(self, folder: Folder) -> None:
        """Not what nobody asked for: other weights, or more ranks than a node has GPUs."""
        first = re.compile(r"No plan is possible\n  · (.*?)(?:\n  ·|\n\n)", re.DOTALL)
        folder.manifest(manifest("deepseek-ai/DeepSeek-V3"))
        found = first.findall(folder.ask().stdout)
        assert "use weights None with engine.backend PyTorch" in " ".join(found[0].split())
        folder.manifest(manifest("meta-llama/Llama-3.1-405B"))
        folder.nodes([{"product": H100, "count": 4, "gpus": 8, "free": 0}])
        assert first.findall(folder.ask().stdout)[0].startswith("NotEnoughGPUs: ")

    def test_nothing_is_padded_with_blanks(self, hopeless: Folder) -> None:
        for command in ("plan", "explain"):
            text = hopeless.ask(command=command).stdout
            assert text == "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    def test_json_has_no_chosen(self, hopeless: Folder) -> None:
        result = hopeless.ask("-o", "json")
        assert result.exit_code == 1
        assert from_data(json.loads(result.stdout)).chosen is None

    @pytest.mark.parametrize("form", ["svg", "html"])
    def test_there_is_nothing_to_draw(self, hopeless: Folder, form: str) -> None:
        result = hopeless.ask("-o", form, "--output", "plan.out")
        assert result.exit_code == 1
        assert f"there is no {form} to draw" in result.stderr
        assert not (hopeless.path / "plan.out").exists()


def test_the_cause_is_told_first_and_what_follows_from_it_not_at_all(folder: Folder) -> None:
    engine = {"runtime": "TensorRTLLM", "backend": "PyTorch"}
    spec = {"engine": engine, "parallelism": {"expert": 3}}
    folder.manifest(manifest("mistralai/Mixtral-8x7B-Instruct-v0.1", **spec))
    folder.nodes([{"product": H100, "count": 2, "gpus": 8, "fabric": "RDMA"}])
    for command in ("plan", "explain"):
        result = folder.ask(command=command)
        assert result.exit_code == 1
        told = re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b(?=[: ]*[(:])", result.stdout)
        assert told[:1] == ["ExpertsNotDivisible"], result.stdout
        assert "TensorOutsideDomain" not in result.stdout
        assert "GroupsNotDivisible" not in result.stdout


BASE = manifest("meta-llama/Llama-3.1-8B")
WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no object": ([], ("llmd.yaml", "no LLMDeployment")),
    "another kind": ({"kind": "Pod"}, ("no LLMDeployment", "it has Pod")),
    "another version": (
        {**BASE, "apiVersion": "shardwright.dev/v2"},
        ("apiVersion shardwright.dev/v2", "shardwright.dev/v1alpha1"),
    ),
    "no spec": ({**BASE, "spec": None}, ("spec: expected a map",)),
    "no model": (
        {**BASE, "spec": {}},
        ("llmd.yaml: spec.model: is missing: write a map with uri",),
    ),
    "unknown field": (
        {**BASE, "spec": {**BASE["spec"], "tensor": 8}},
        ("llmd.yaml: spec.tensor: is no field here: write spec.parallelism.tensor",),
    ),
    "wrong number": (
        {**BASE, "spec": {**BASE["spec"], "parallelism": {"tensor": 0}}},
        ("spec.parallelism.tensor: 0 is less than 1: write a whole number from 1 to 1024",),
    ),
    "wrong expert": (
        {**BASE, "spec": {**BASE["spec"], "parallelism": {"expert": "two"}}},
        ('spec.parallelism.expert: "two" is a text: write a whole number from 1 to 1024',),
    ),
    "unknown precision": (
        {**BASE, "spec": {**BASE["spec"], "quantization": {"weights": "FP7"}}},
        ("spec.quantization.weights", "FP7", "FP8"),
    ),
    "unknown objective": (
        {**BASE, "spec": {**BASE["spec"], "workload": {"objective": "Fast"}}},
        ("spec.workload.objective", "Latency", "Fast"),
    ),
    "no load": (
        {**BASE, "spec": {**BASE["spec"], "workload": {"concurrency": 0}}},
        ("spec.workload.concurrency: 0 is less than 1: write a whole number from 1 to 1048576",),
    ),
    "unknown load": (
        {**BASE, "spec": {**BASE["spec"], "workload": {"users": 5}}},
        ("spec.workload.users: is no field: known here are objective, concurrency, inputLen",),
    ),
    "a baseline in no unit": (
        {
            **BASE,
            "spec": {
                **BASE["spec"],
                "quantization": {"accuracy": {"task": "mmlu", "maxDrop": 1, "baseline": 1000}},
            },
        },
        (
            "llmd.yaml: spec.quantization.accuracy",
            "baseline 1000 is no score of task mmlu, which is per cent: give 0 to 100",
        ),
    ),
    "unknown field beside the spec": (
        {**BASE, "sepc": {}},
        ("llmd.yaml: sepc: is no field: did you mean spec?",),
    ),
    "a field of the spec beside it": (
        {**BASE, "replicas": 2},
        ("llmd.yaml: replicas: is no field here: write spec.replicas",),
    ),
    "metadata that is none": (
        {**BASE, "metadata": "example"},
        ('llmd.yaml: metadata: "example" is a text: write a map with name',),
    ),
    "a name that no pod can have": (
        {**BASE, "metadata": {"name": "4llama"}},
        ("llmd.yaml: metadata.name 4llama must start with a letter",),
    ),
    "too long": (
        {**BASE, "spec": {**BASE["spec"], "workload": {"inputLen": 4000, "outputLen": 5000}}},
        ("llmd.yaml: spec: workload.inputLen + workload.outputLen exceed", "8192", "raise"),
    ),
    "unknown model": (
        manifest("meta-llama/Llama-9-1T"),
        ("meta-llama/Llama-9-1T", "--model-config"),
    ),
    "model elsewhere": (
        {**BASE, "spec": {"model": {"uri": "pvc://models/mine"}}},
        ("spec.model.uri pvc://models/mine", "--model-config"),
    ),
}


class TestBadInput:
    """Exit code 2: one line on stderr that names field, value and a fix, and nothing on stdout."""

    @staticmethod
    def said(result: Result) -> str:
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        return result.stderr

    @pytest.mark.parametrize(("body", "words"), WRONG.values(), ids=WRONG)
    def test_a_manifest_that_is_wrong(
        self, folder: Folder, body: Any, words: tuple[str, ...]
    ) -> None:
        folder.manifest(body)
        message = self.said(folder.ask())
        for word in words:
            assert word in message

    def test_all_that_is_wrong_is_told_at_once(self, folder: Folder) -> None:
        spec = {"replica": 2, "parallelism": {"tensor": "8", "pipelines": 2}, "model": {}}
        folder.manifest({**BASE, "spec": spec})
        assert self.said(folder.ask()).splitlines() == [
            (
                "llmd.yaml: spec.model.uri: is missing: write a text of 1 to 512 characters "
                "(hf://org/name@revision, pvc://claim/path, s3://bucket/prefix or "
                "oci://registry/repository:tag)"
            ),
            (
                "llmd.yaml: spec.parallelism.pipelines: is no field: did you mean "
                "spec.parallelism.pipeline?"
            ),
            'llmd.yaml: spec.parallelism.tensor: "8" is a text: write it without quotes, 8',
            "llmd.yaml: spec.replica: is no field: did you mean spec.replicas?",
        ]
        assert self.said(folder.ask(command="explain")) == self.said(folder.ask())

    def test_a_name_may_be_left_out_and_what_a_server_wrote_is_no_matter(
        self, folder: Folder
    ) -> None:
        for metadata in (None, {}, {"generateName": "llama-", "uid": "1"}):
            folder.manifest({**BASE, "metadata": metadata, "status": {"anything": 1}})
            assert folder.ask().exit_code == 0

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("nodes: [", ("nodes.yaml", "no YAML")),
            ("[]", ("nodes.yaml", "kubectl get nodes -o yaml")),
            (
                "nodes: [{product: NVIDIA-H100-80GB-HBM3, gpu: 8}]",
                ("nodes[0].gpu: is no field: did you mean nodes[0].gpus?",),
            ),
            ("nodes: [{product: NVIDIA-X1, gpus: 8}]", ("NVIDIA-X1",)),
            ("{kind: PodList, apiVersion: v1, items: [{metadata: {name: a}}]}", ("Pod",)),
            ("{kind: Node, apiVersion: v1, metadata: {}}", ("cannot be read", "name")),
            (
                "{kind: Node, apiVersion: v1, metadata: {name: a}, status: {}}",
                ("no node can be used",),
            ),
        ],
    )
    def test_nodes_that_are_wrong(self, folder: Folder, text: str, words: tuple[str, ...]) -> None:
        (folder.path / "nodes.yaml").write_text(text, encoding="utf-8")
        message = self.said(folder.ask())
        for word in words:
            assert word in message

    @pytest.mark.usefixtures("folder")
    def test_no_nodes_at_all(self) -> None:
        result = CliRunner().invoke(app, ["plan", "llmd.yaml"])
        assert "--nodes FILE" in self.said(result)
        both = CliRunner().invoke(app, ["plan", "llmd.yaml", "--nodes", "n", "--context", "c"])
        assert "either --nodes FILE" in self.said(both)

    @pytest.mark.usefixtures("folder")
    def test_a_file_that_is_not_there(self) -> None:
        result = CliRunner().invoke(app, ["plan", "none.yaml", "--nodes", "nodes.yaml"])
        assert "none.yaml: No such file" in self.said(result)

    def test_bytes_that_are_no_text(self, folder: Folder) -> None:
        (folder.path / "llmd.yaml").write_bytes(b"\xff\xfe\x00")
        assert "no UTF-8 text" in self.said(folder.ask())

    def test_two_objects(self, folder: Folder) -> None:
        text = yaml.safe_dump_all([BASE, BASE])
        (folder.path / "llmd.yaml").write_text(text, encoding="utf-8")
        assert "2 objects of kind LLMDeployment" in self.said(folder.ask())

    def test_a_context_that_does_not_exist(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (folder.path / "kubeconfig").write_text("{apiVersion: v1, kind: Config}", encoding="utf-8")
        monkeypatch.setenv("KUBECONFIG", str(folder.path / "kubeconfig"))
        result = CliRunner().invoke(app, ["plan", "llmd.yaml", "--context", "moon"])
        assert "--context moon" in self.said(result)

    def test_a_config_that_is_no_model(self, folder: Folder) -> None:
        (folder.path / "config.json").write_text("{}", encoding="utf-8")
        assert "config.json" in self.said(folder.ask("--model-config", "config.json"))


class TestManifest:
    """What is given is kept, what is left out is planned."""

    def chosen(self, folder: Folder, *options: str, **spec: Any) -> Any:
        folder.manifest(manifest("meta-llama/Llama-3.1-70B", **spec))
        folder.nodes([{"product": H100, "count": 2, "gpus": 8, "fabric": "RDMA"}])
        found = from_data(json.loads(folder.ask("-o", "json", *options).stdout)).chosen
        assert found is not None
        return found

    def test_what_is_fixed_is_kept(self, folder: Folder) -> None:
        found = self.chosen(
            folder,
            parallelism={"tensor": 4, "pipeline": 1},
            quantization={"weights": "FP8", "kvCache": "FP8"},
            replicas=2,
        )
        assert (found.shape.tensor, found.shape.pipeline, found.replicas) == (4, 1, 2)
        assert (found.precision.weights, found.precision.kv_cache) == ("FP8", "FP8")

    def test_half_a_section_leaves_the_other_half_open(self, folder: Folder) -> None:
        found = self.chosen(folder, quantization={"kvCache": "FP8"})
        assert found.precision.kv_cache == "FP8"
        assert found.precision.weights == "FP8", "16 bits need more GPUs"

    def test_auto_is_open(self, folder: Folder) -> None:
        auto = {"weights": "Auto", "kvCache": "Auto"}
        assert self.chosen(folder, quantization=auto) == self.chosen(folder)

    def test_open_plans_anew_what_is_fixed(self, folder: Folder) -> None:
        fixed = {"parallelism": {"tensor": 4}, "quantization": {"weights": "None"}, "replicas": 1}
        assert self.chosen(folder, "--open", **fixed) == self.chosen(folder)

    def test_the_text_says_what_is_fixed(self, folder: Folder) -> None:
        self.chosen(folder, parallelism={"tensor": 4})
        assert "Fixed by the manifest: tensor 4 (--open plans them anew)" in folder.ask().stdout

    def test_no_replicas_are_planned_as_one_and_said(self, folder: Folder) -> None:
        assert self.chosen(folder, replicas=0) == self.chosen(folder, replicas=1)
        folder.manifest(manifest("meta-llama/Llama-3.1-70B", replicas=0))
        assert "replicas is 0 (scaled to zero)" in folder.ask().stdout

    def test_replicas_left_out_are_planned_and_what_a_cluster_would_do_is_said(
        self, folder: Folder
    ) -> None:
        load = {"objective": "Throughput", "concurrency": 64}
        assert self.chosen(folder, workload=load).replicas > 1
        text = " ".join(folder.ask().stdout.split())
        one = self.chosen(folder, workload=load, replicas=1)
        told = f"for one replica tensor {one.shape.tensor} × pipeline {one.shape.pipeline} on"
        assert told in text
        assert "write replicas into the manifest" in text
        assert "write replicas" not in folder.ask().stdout
        assert "write replicas" not in folder.ask("--open").stdout

    def test_targets_are_asked_beside_the_manifest(self, folder: Folder) -> None:
        load = {"objective": "Throughput", "concurrency": 64}
        free = self.chosen(folder, workload=load)
        tight = self.chosen(folder, "--tpot-seconds", "0.02", workload=load)
        assert tight.estimate.tpot_seconds <= 0.02 < free.estimate.tpot_seconds
        assert "20 ms a token" in folder.ask("--tpot-seconds", "0.02").stdout
        wrong = folder.ask("--ttft-seconds", "0")
        assert wrong.exit_code == 2
        assert "ttftSeconds 0" in wrong.stderr

    def test_spread_is_kept(self, folder: Folder) -> None:
        shape = {"tensor": 4, "pipeline": 2}
        assert self.chosen(folder, parallelism=shape).stage_nodes == (0, 0)
        spread = {"pipelineStages": "Spread"}
        assert self.chosen(folder, parallelism=shape, placement=spread).stage_nodes == (0, 1)
        assert "pipelineStages Spread" in folder.ask().stdout
        folder.nodes([{"product": H100, "count": 1, "gpus": 8}])
        refused = folder.ask()
        assert refused.exit_code == 1
        assert "NotEnoughNodes" in refused.stdout

    @pytest.mark.parametrize(
        ("more", "parts"),
        [
            (
                {"engine": {"runtime": "NIM"}, "lora": {"maxRank": 8}},
                ("LoRANotSupported", "use runtime VLLM or SGLang"),
            ),
            (
                {"engine": {"runtime": "VLLM", "config": {"max-lora-rank": 3}}},
                ("ReservedEngineConfig", "use lora.maxRank instead"),
            ),
            (
                {
                    "quantization": {
                        "accuracy": {
                            "task": "perplexity",
                            "dataset": "text.txt",
                            "maxPerplexity": 9,
                        }
                    },
                },
                ("AccuracyTaskNotSupported", "perplexity"),
            ),
            (
                {"speculative": {"method": "MTP"}, "engine": {"backend": "PyTorch"}},
                ("speculative.method MTP", "no multi-token-prediction layers"),
            ),
        ],
        ids=["lora", "config", "gate", "mtp"],
    )
    def test_what_the_operator_refuses_is_not_planned(
        self, folder: Folder, more: dict[str, Any], parts: tuple[str, ...]
    ) -> None:
        shape = {"tensor": 4, "pipeline": 1}
        folder.manifest(manifest("meta-llama/Llama-3.1-70B", parallelism=shape, **more))
        refused = folder.ask()
        assert (refused.exit_code, refused.stdout) == (2, "")
        for part in parts:
            assert part in refused.stderr

    def test_images_of_an_administrator_count_as_named(self, folder: Folder) -> None:
        gate = {"accuracy": {"task": "mmlu", "minScore": 60}}
        shape = {"parallelism": {"tensor": 4, "pipeline": 1}}
        self.chosen(folder, **shape, engine={"runtime": "VLLM"}, quantization=gate)
        self.chosen(folder, **shape, engine={"runtime": "VLLM", "version": "0.19.0"})
        assert "a cluster refuses it, UnknownVersion" in " ".join(folder.ask().stdout.split())

    def test_a_draft_takes_memory_or_is_said_not_to_be_counted(self, folder: Folder) -> None:
        def drafts(name: str) -> dict[str, Any]:
            return {"method": "DraftModel", "model": {"uri": f"hf://meta-llama/{name}"}}

        shape = {"parallelism": {"tensor": 4, "pipeline": 1}, "engine": {"runtime": "VLLM"}}
        plain = self.chosen(folder, **shape)
        counted = self.chosen(folder, **shape, speculative=drafts("Llama-3.2-1B-Instruct"))
        assert counted.memory.stages[-1].kv_pool < plain.memory.stages[-1].kv_pool
        assert "memory is not counted" not in " ".join(folder.ask().stdout.split())
        self.chosen(folder, **shape, speculative=drafts("Of-Another-Name"))
        assert "memory is not counted" in " ".join(folder.ask().stdout.split())

    @pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("llama-*.yaml")))
    def test_the_examples_plan(self, folder: Folder, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        (folder.path / "llmd.yaml").write_text(text, encoding="utf-8")
        folder.nodes(
            [
                {"product": H100, "count": 2, "gpus": 8, "fabric": "RDMA"},
                {"product": "NVIDIA-H200", "count": 2, "gpus": 8, "fabric": "RDMA"},
                {"product": "NVIDIA-A100-SXM4-80GB", "count": 2, "gpus": 8},
            ]
        )
        result = folder.ask()
        known = "is not in the catalogue" not in result.stderr
        assert result.exit_code == (0 if known else 2), result.output


def kubectl(*, taken: int = 0) -> dict[str, Any]:
    """What `kubectl get nodes,pods -A -o json` prints, shortened."""
    labels = {"nvidia.com/gpu.product": H100, "nvidia.com/gpu.memory": "81559"}
    nodes: list[dict[str, Any]] = [
        {
            "kind": "Node",
            "metadata": {"name": f"gpu-{number}", "uid": f"u{number}", "labels": labels},
            "status": {
                "capacity": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti"},
                "allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "1Ti"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        for number in range(2)
    ]
    pods: list[dict[str, Any]] = [
        {
            "kind": "Pod",
            "metadata": {"name": "other", "namespace": "default", "uid": "p"},
            "spec": {
                "nodeName": "gpu-1",
                "containers": [
                    {
                        "name": "main",
                        "resources": {"requests": {"nvidia.com/gpu": str(taken)}},
                    }
                ],
            },
            "status": {"phase": "Running"},
        }
    ]
    return {"kind": "List", "apiVersion": "v1", "items": [*nodes, *(pods if taken else [])]}


class TestNodesOfACluster:
    """Nodes as kubectl prints them."""

    def test_names_and_counts_come_from_the_nodes(self, folder: Folder) -> None:
        (folder.path / "nodes.yaml").write_text(json.dumps(kubectl()), encoding="utf-8")
        text = folder.ask().stdout
        assert "2 nodes × 8 NVIDIA-H100-80GB-HBM3" in text
        assert "16 of 16 GPUs free" in " ".join(text.split())
        assert re.search(r"^gpu-0 ", text, re.MULTILINE)

    def test_pods_beside_them_take_their_gpus(self, folder: Folder) -> None:
        (folder.path / "nodes.yaml").write_text(json.dumps(kubectl(taken=6)), encoding="utf-8")
        folder.manifest(manifest("meta-llama/Llama-3.1-8B", parallelism={"tensor": 2}))
        text = folder.ask().stdout
        assert "10 of 16 GPUs free" in " ".join(text.split())
        assert re.search(r"^gpu-1( +##){6} +0 +1 ", text, re.MULTILINE)
        assert "6 in use by others" in text


@pytest.mark.parametrize(
    ("picture", "file", "nodes"),
    [
        ("plan-2-nodes.svg", "examples/llama-405b.yaml", "docs/img/nodes-2.yaml"),
        ("plan-200-nodes.svg", "docs/img/llama-405b-bf16.yaml", "docs/img/nodes-200.yaml"),
    ],
)
def test_the_pictures_of_the_documents_are_what_the_tool_draws(
    picture: str, file: str, nodes: str
) -> None:
    arguments = ["plan", str(ROOT / file), "--nodes", str(ROOT / nodes), "-o", "svg"]
    drawn = CliRunner().invoke(app, arguments).stdout
    path = ROOT / "docs/img" / picture
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(drawn, encoding="utf-8")
    assert drawn == path.read_text(encoding="utf-8"), f"{picture}: run with UPDATE_GOLDEN=1"
    text = (ROOT / "docs/planning.md").read_text(encoding="utf-8")
    assert f"shardwright plan {file} --nodes {nodes} -o svg --output docs/img/{picture}" in text
