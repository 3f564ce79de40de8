"""What the documents say must be so: links, make targets, reasons, tables."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from shardwright.api import names
from shardwright.api.changes import SPEC_CLASSES, ChangeClass, effects
from shardwright.api.settings import Settings
from shardwright.api.spec import Backend
from shardwright.benchmark.job import LABEL_BENCHMARK
from shardwright.runtimes import sglang_serve, triton_serve, vllm_serve

ROOT = Path(__file__).resolve().parents[2]
CODE = ROOT / "operator/shardwright"
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
STATUS = (ROOT / "docs/status.md").read_text(encoding="utf-8")

REASON_SOURCES = [
    CODE / "fetching/failures.py",
    CODE / "plan/adapter_checks.py",
    CODE / "plan/adapter_report.py",
    CODE / "plan/adapters.py",
    CODE / "plan/advice.py",
    CODE / "plan/aim.py",
    CODE / "plan/acts.py",
    CODE / "plan/attempts.py",
    CODE / "plan/breakage.py",
    CODE / "plan/chain.py",
    CODE / "plan/checks.py",
    CODE / "plan/choice.py",
    CODE / "plan/collection.py",
    CODE / "plan/conditions.py",
    CODE / "plan/baseline.py",
    CODE / "plan/deployment.py",
    CODE / "plan/gate.py",
    CODE / "plan/gating.py",
    CODE / "plan/draft_checks.py",
    CODE / "plan/groups.py",
    CODE / "plan/links.py",
    CODE / "plan/question.py",
    CODE / "plan/recording.py",
    CODE / "plan/stepfaults.py",
    CODE / "plan/given.py",
    CODE / "sizing/blocks.py",
    CODE / "control/transitions.py",
    CODE / "runner/__main__.py",
    *sorted((CODE / "runner/contract").glob("[!_]*.py")),
    CODE / "runtimes/experts.py",
    CODE / "runtimes/evaluation_ways.py",
    CODE / "runtimes/evaluation.py",
    *sorted((CODE / "runtimes").glob("tensorrt_*.py")),
    *sorted((CODE / "runtimes").glob("direct*.py")),
    CODE / "runtimes/flag_files.py",
    CODE / "runtimes/triton_checks.py",
    CODE / "runtimes/triton_options.py",
    CODE / "runtimes/vllm.py",
    CODE / "runtimes/sglang.py",
    CODE / "runtimes/nim.py",
    CODE / "runtimes/nim_checks.py",
]
# Words in those files that look like reasons and are none.
NOT_REASONS = {
    *("True", "False", "Unknown"),  # condition statuses
    *("Absent", "Partial", "Gated", "Placing", "Starting", "Broken"),  # states of groups
    *("Artifact", "Crash", "Node", "Permanent", "Unplaced", "Environment", "Done"),  # faults
    # what a chain asks for
    *("Backoff", "Count", "Create", "Fail", "Place", "Record", "Wait", "Withdraw"),
    *("Key", "Source", "Memory", "Surroundings"),  # what is to blame for a step
    *("ErrImagePull", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"),  # the kubelet's
    *("ContainerCreating", "PodInitializing", "UnexpectedAdmissionError", "NodeAffinity"),
    *("Trash", "Restore", "Purge"),  # what a sweep does
    *("NVLink", "PCIe", "SharedMemory", "Network", "RDMAWithoutGPUDirect"),  # links
    *("Socket", "None"),
    *("Collected", "Discarded"),  # why a record was withdrawn, which no condition says
    "ReadWriteOncePod",
    *("Waiting", "Refused", "Failed", "Leaving"),  # what a leader says of an adapter
    *("ReplaceGroup", "Plan"),  # actions of events
    *(
        "TooLittleHeadroom",
        "LongestRequestDoesNotFit",
        "NotEnough",
    ),  # what the planner calls a near miss
    "ModelNotKnown",  # told as NoPlanPossible
    "Message",  # a type variable
    *("Undecided", "Passed", "Failed"),  # what a gate answers
    "PyTorch",  # a backend
    *("Medusa", "Eagle", "NGram"),  # what a runtime calls methods of speculation
}


def words(path: Path) -> set[str]:
    """CamelCase strings of a source file."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*", node.value)
    }


@pytest.mark.parametrize("path", REASON_SOURCES, ids=lambda path: path.stem)
def test_every_reason_that_the_code_can_give_is_described(path: Path) -> None:
    described = set(re.findall(r"`(\w+)`", STATUS))
    assert words(path) - NOT_REASONS - described == set()


def test_every_reason_that_is_described_can_be_given() -> None:
    given: set[str] = set().union(*(words(path) for path in REASON_SOURCES))
    rows = [line for line in STATUS.splitlines() if line.startswith("| `")]
    firsts = {word for row in rows for word in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])}
    assert firsts - given == set()


def test_no_reason_is_described_twice_under_one_heading() -> None:
    for section in STATUS.split("\n## "):
        rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
        firsts = [word for row in rows for word in re.findall(r"`([A-Z]\w+)`", row)]
        twice = sorted({word for word in firsts if firsts.count(word) > 1})
        assert not twice, section.splitlines()[0]


def test_the_words_that_are_no_reasons_are_still_in_the_code() -> None:
    given: set[str] = set().union(*(words(path) for path in REASON_SOURCES))
    assert given >= NOT_REASONS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.exists(), f"{target} in {path.name}"
        if anchor:
            assert anchor in anchors(found), f"{target} in {path.name}"


def anchors(path: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_and_make_target_that_a_document_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    targets = set(
        re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = re.findall(r"\bmake ([a-z][a-z0-9-]+)(?=[`\s])", code_of(text))
    assert set(named) - targets == set()
    top = "charts|crds|deploy|docs|examples|hack|operator|sandbox|tests"
    for name in re.findall(rf"(?<![\w./-])((?:{top})/[\w./-]*\w)", code_of(text)):
        assert (ROOT / name).exists(), f"{name} in {path.name}"


def code_of(text: str) -> str:
    """Fenced blocks and code spans."""
    fenced = re.findall(r"```.*?```", text, flags=re.DOTALL)
    spans = re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return "\n".join([*fenced, *spans])


def test_ci_runs_the_test_command_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## Tests", 1)[1].split("\n## ", 1)[0]
    command = next(line for line in section.splitlines() if line.startswith("make "))
    run = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert command.split("#")[0].strip() in [line.strip() for line in run]


ROWS = {
    "parallelism": ChangeClass.SHAPE,
    "GPU product": ChangeClass.GPU,
    "runtime, backend, version, image": ChangeClass.RUNTIME,
    "weights, calibration, dtype": ChangeClass.WEIGHTS,
    "KV cache precision": ChangeClass.KV_CACHE,
    "draft model or heads": ChangeClass.DRAFT,
    "speculation": ChangeClass.SPECULATION,
    "limits, build options": ChangeClass.BUILD,
    "accuracy gate": ChangeClass.GATE,
    "model": ChangeClass.MODEL,
    "storage claim": ChangeClass.STORAGE,
    "options that are in no engine": ChangeClass.ROLLING,
    "what only the operator reads": ChangeClass.NONE,
}


def table(title: str) -> dict[str, list[str]]:
    """Rows of a table below a heading of docs/artifacts.md, by their first cell."""
    text = (ROOT / "docs/artifacts.md").read_text(encoding="utf-8")
    section = text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in rows[2:]}


@pytest.mark.parametrize(
    ("title", "backend", "quantized"),
    [
        ("With an engine (`backend: TensorRT`)", Backend.TENSORRT, True),
        ("Without an engine (`backend: PyTorch`, vLLM, SGLang)", Backend.PYTORCH, False),
        ("Without an engine (`backend: PyTorch`, vLLM, SGLang)", None, False),
        ("Without an engine (`backend: PyTorch`, vLLM, SGLang)", None, True),
        ("Without an engine, quantized here", Backend.PYTORCH, True),
    ],
)
def test_the_table_of_rebuilds_is_the_one_that_the_operator_goes_by(
    title: str, backend: Backend | None, quantized: bool
) -> None:
    rows = table(title)
    assert list(rows) == list(ROWS)
    for name, change in ROWS.items():
        effect = effects(change, backend, quantized)
        wanted = [effect.fetch, effect.checkpoint, effect.engine, effect.candidate, effect.roll]
        assert [bool(cell) for cell in rows[name]] == wanted, name


def test_the_table_of_fields_has_every_field_under_its_class() -> None:
    rows = table("Which field is in which row")
    assert list(rows) == list(ROWS)
    for name, change in ROWS.items():
        listed = re.findall(r"`([\w.]+)`", rows[name][0])
        assert listed == [path for path, found in SPEC_CLASSES.items() if found is change], name


def setting_paths(model: type, prefix: str = "") -> set[str]:
    """Dotted names of all settings, those of map and list items left out."""
    paths: set[str] = set()
    for field in model.model_fields.values():  # type: ignore[attr-defined]
        name = f"{prefix}{field.alias}"
        if hasattr(field.annotation, "model_fields"):
            paths |= setting_paths(field.annotation, f"{name}.")
        else:
            paths.add(name)
    return paths


def test_every_setting_is_described_with_its_default() -> None:
    text = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (.+?) \|", text, flags=re.MULTILINE)
    described = dict(rows)
    assert set(described) == setting_paths(Settings)
    defaults = Settings().model_dump(by_alias=True, mode="json")
    for path, shown in described.items():
        value = defaults
        for part in path.split("."):
            value = value[part]
        if isinstance(value, list | dict) and value:
            continue  # too long for a table: the chart's values list them
        assert shown == f"`{say(value)}`", path


def say(value: object) -> str:
    """A default as the table shows it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_requests_to_a_deployment_s_service_go_to_its_port(path: Path) -> None:
    """The Service listens on the port of HTTP itself; pods have their own."""
    asked = re.findall(r"https?://(llama-[\w-]+|<name>)(:\d+)?/", path.read_text(encoding="utf-8"))
    assert {port for _, port in asked} <= {""}


def test_the_ports_that_policies_must_open_are_the_ones_that_pods_use() -> None:
    section = (ROOT / "docs/security.md").read_text(encoding="utf-8").split("denies by default")[1]
    known = {
        names.PORT_HTTP,
        names.PORT_RUNNER,
        names.PORT_CHANNEL,
        vllm_serve.MASTER_PORT,
        sglang_serve.DIST_PORT,
        triton_serve.PORT_GRPC,
        triton_serve.PORT_METRICS,
    }
    told = {int(number) for number in re.findall(r"\b\d{4,5}\b", section)}
    assert told == known
    (block,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    policy = yaml.safe_load(block)
    assert policy["spec"]["podSelector"] == {"matchLabels": {names.LABEL_DEPLOYMENT: "llama-8b"}}
    for label in (names.LABEL_STEP, LABEL_BENCHMARK):
        assert f"{{key: {label}, operator: Exists}}" in block
    opened = [rule.get("ports") for rule in policy["spec"]["ingress"]]
    assert opened == [None, [{"port": names.PORT_HTTP}], [{"port": names.PORT_RUNNER}]]
