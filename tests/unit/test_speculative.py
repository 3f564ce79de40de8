"""Speculation: what is rendered and keyed, which combinations are refused, how a draft is made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.golden import specs
from tests.support.played import World
from tests.unit.test_runtime_contracts import contract, violations

from shardwright.api.settings import Settings
from shardwright.api.spec import Backend, LLMDeploymentSpec, SpeculationMethod
from shardwright.observe.world import Record, RecordState
from shardwright.plan.chain import missing
from shardwright.plan.collection import named_by_revision, named_by_spec
from shardwright.plan.draft_checks import refuse_draft
from shardwright.plan.drafts import draft_folder, draft_key
from shardwright.plan.resolve import model_key, resolve
from shardwright.plan.revisions import dump, load
from shardwright.plan.room import memory_plan
from shardwright.plan.situation import CreateStep
from shardwright.render.jobs import step_job
from shardwright.render.pods import group_pods, serve_request
from shardwright.resolved import Resolved
from shardwright.runner.config_keys import kept_config, pack_config
from shardwright.runner.contract import (
    PERMANENT,
    STEP_CHECKPOINT,
    STEP_ENGINE,
    STEP_MODEL,
    ModelFacts,
    Report,
    ServeRequest,
    decode,
    encode,
)
from shardwright.runtimes.base import Refusal
from shardwright.runtimes.registry import runtime
from shardwright.sizing.catalogue import catalogue_config

SOURCES = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "support_sources.yaml").read_text(encoding="utf-8")
)
DRAFT = "hf://meta-llama/Llama-3.2-1B-Instruct@main"
DRAFT_COMMIT = "d" * 40
OWN = ("NGram", "MTP")
SMALL = specs.facts(hidden_size=2048, layers=16, bytes=2_500_000_000)


def asked(method: str, backend: str = "PyTorch", **changes: Any) -> LLMDeploymentSpec:
    wish: dict[str, Any] = {"method": method, "maxDraftLen": 4}
    if method not in OWN:
        wish["model"] = {"uri": changes.pop("draft", DRAFT)}
    wish |= changes.pop("wish", {})
    return specs.spec(engine={"backend": backend}, speculative=wish, **changes)


def drafted(spec: LLMDeploymentSpec, facts: ModelFacts | None = SMALL) -> Record | None:
    if not draft_key(spec):
        return None
    return Record(
        STEP_MODEL,
        draft_key(spec),
        specs.CLAIM.uid,
        RecordState.READY,
        commit=DRAFT_COMMIT,
        facts=facts,
    )


def resolved(spec: LLMDeploymentSpec, previous: Resolved | None = None) -> Resolved:
    return resolve(
        spec,
        runtime=runtime(spec.engine.runtime),
        settings=specs.SETTINGS,
        claim=specs.CLAIM,
        record=Record(
            STEP_MODEL,
            model_key(spec),
            specs.CLAIM.uid,
            RecordState.READY,
            commit=specs.COMMIT,
            facts=specs.LLAMA_8B,
        ),
        facts=specs.LLAMA_8B,
        restarted_at="",
        previous=previous,
        drafts=drafted(spec),
    )


def refused(spec: LLMDeploymentSpec, facts: ModelFacts = specs.LLAMA_8B) -> Refusal | None:
    engine = runtime(spec.engine.runtime)
    return engine.refuse_spec(spec, (9, 0)) or engine.refuse_model(spec, facts)


def block(spec: LLMDeploymentSpec) -> dict[str, Any]:
    found: dict[str, Any] = runtime(spec.engine.runtime).serve_config(resolved(spec))[
        "speculative_config"
    ]
    return found


def keys(found: Resolved) -> dict[str, str]:
    named = {found.model_key: "model", **dict.fromkeys(found.also, "draft")}
    return {
        **{named.get(one.key, one.step): one.key for one in found.artifacts},
        "proof": found.proof_key,
    }


# What each method is given, on each backend.

RENDERED: dict[tuple[str, str], dict[str, Any]] = {
    ("DraftModel", "PyTorch"): {"decoding_type": "Draft_Target", "max_draft_len": 4},
    ("Eagle3", "PyTorch"): {"decoding_type": "Eagle", "max_draft_len": 4},
    ("NGram", "PyTorch"): {"decoding_type": "NGram", "max_draft_len": 4},
    ("MTP", "PyTorch"): {"decoding_type": "MTP", "num_nextn_predict_layers": 4},
    ("Medusa", "TensorRT"): {
        "decoding_type": "Medusa",
        "max_draft_len": 4,
        "num_medusa_heads": 4,
        "medusa_choices": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]],
    },
    ("Eagle", "TensorRT"): {
        "decoding_type": "Eagle",
        "max_draft_len": 4,
        "eagle_choices": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]],
    },
}
REFUSED = {
    ("DraftModel", "TensorRT"): "trtllm-speculation-pytorch",
    ("Eagle3", "TensorRT"): "trtllm-speculation-pytorch",
    ("NGram", "TensorRT"): "trtllm-speculation-pytorch",
    ("MTP", "TensorRT"): "trtllm-speculation-pytorch",
    ("Medusa", "PyTorch"): "trtllm-speculation-tensorrt",
    ("Eagle", "PyTorch"): "trtllm-eagle-is-eagle3",
}
CELLS = [(method.value, backend.value) for method in SpeculationMethod for backend in Backend]


@pytest.mark.parametrize(("method", "backend"), CELLS)
def test_every_method_is_rendered_or_refused_with_a_source(method: str, backend: str) -> None:
    spec = asked(method, backend)
    found = refused(spec)
    if (method, backend) in REFUSED:
        assert found is not None
        assert (found.reason, found.source) == (
            "SpeculationNotSupported",
            REFUSED[method, backend],
        )
        assert f"speculative.method {method}" in found.message
        assert set(SOURCES[found.source]) == {"says", "where"}
        return
    assert found is None, found
    wanted = RENDERED[method, backend]
    if method not in OWN:
        wanted = {**wanted, "speculative_model_dir": draft_folder(spec)}
    assert block(spec) == wanted


@pytest.mark.parametrize(("method", "backend"), RENDERED)
def test_what_is_rendered_stands_in_the_recorded_contract(method: str, backend: str) -> None:
    spec = asked(method, backend)
    recorded = contract("llm_args")["keys"]["speculative_config"]
    assert set(block(spec)) <= set(recorded["keys"])
    assert block(spec)["decoding_type"] in recorded["decoding_types"][backend.lower()]
    found = resolved(spec)
    commands = [command for artifact in found.artifacts for command in artifact.commands]
    commands.append(runtime(spec.engine.runtime).serve_command(found))
    assert [wrong for command in commands for wrong in violations(command)] == []


def test_heads_are_converted_and_compiled_with_the_model() -> None:
    for method, folder, flags in (
        ("Medusa", "medusa", "--num_medusa_heads 4 --max_medusa_token_len 4 "),
        ("Eagle", "eagle", "--num_eagle_layers 4 --max_draft_len 4 "),
    ):
        spec = asked(method, "TensorRT", parallelism={"tensor": 2})
        found = resolved(spec)
        assert [one.step for one in found.artifacts] == [
            STEP_MODEL,
            STEP_MODEL,
            STEP_CHECKPOINT,
            STEP_ENGINE,
        ]
        convert, build = (" ".join(one.commands[0].argv) for one in found.artifacts[2:])
        assert f"/examples/{folder}/convert_checkpoint.py " in convert
        assert f"--{folder}_model_dir {draft_folder(spec)} {flags}" in convert
        assert "--tp_size 2 --pp_size 1 --load-model-on-cpu" in convert
        assert f"--speculative_decoding_mode {folder} --max_draft_len 4" in build
        assert found.serve_step == STEP_ENGINE


def test_medusa_heads_are_quantized_with_the_model_and_eagle_s_are_refused() -> None:
    medusa = asked("Medusa", "TensorRT", quantization={"weights": "FP8"})
    assert refused(medusa) is None
    argv = " ".join(resolved(medusa).artifacts[2].commands[0].argv)
    assert "quantize.py" in argv
    assert f"--medusa_model_dir {draft_folder(medusa)} --num_medusa_heads 4" in argv
    for precision in ({"weights": "FP8"}, {"kvCache": "FP8"}):
        eagle = refused(asked("Eagle", "TensorRT", quantization=precision))
        assert eagle is not None
        assert (eagle.reason, eagle.source) == ("SpeculationNotSupported", "trtllm-quantize-eagle")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, specs.facts(model_type="qwen2")),
        (
            {
                "quantization": {"weights": "INT4GPTQ"},
                "model": {"uri": "hf://org/model-gptq"},
            },
            specs.facts(quantization="gptq"),
        ),
        ({"parallelism": {"tensor": 4, "expert": 4}}, specs.facts(experts=8)),
    ],
)
def test_what_the_heads_converters_do_not_read_is_refused(
    changes: dict[str, Any], facts: ModelFacts
) -> None:
    found = refused(asked("Medusa", "TensorRT", **changes), facts)
    assert found is not None
    assert (found.reason, found.source) == ("SpeculationNotSupported", "trtllm-heads-converters")


def test_the_runtime_s_own_key_is_refused_by_the_field_s_name() -> None:
    spec = specs.spec(engine={"backend": "PyTorch", "config": {"speculative_config": {}}})
    found = refused(spec)
    assert found is not None
    assert found.reason == "ReservedEngineConfig"
    assert "use speculative instead" in found.message


# The schema.


@pytest.mark.parametrize("method", [method.value for method in SpeculationMethod])
def test_a_model_is_named_exactly_where_one_is_needed(method: str) -> None:
    other = {"model": None} if method not in OWN else {"model": {"uri": DRAFT}}
    said = "need speculative.model" if method not in OWN else "leave speculative.model out"
    with pytest.raises(ValidationError, match=said):
        asked(method, wish=other)


def test_a_draft_s_uri_has_the_forms_of_a_model_s() -> None:
    with pytest.raises(ValidationError, match="write hf://"):
        asked("DraftModel", draft="ftp://host/draft")
    with pytest.raises(ValidationError, match=r"must not contain '\.\.'"):
        asked("DraftModel", draft="pvc://models/../x")


# Keys: what a change makes anew.


def test_without_speculation_nothing_is_as_it_was_not() -> None:
    found = resolved(specs.spec())
    assert found.also == ()
    assert "draft" not in dump(found)
    assert keys(found) == keys(specs.resolved(specs.spec()))


DIFFER = {
    ("PyTorch", "a draft is added"): (
        specs.spec(engine={"backend": "PyTorch"}),
        asked("DraftModel"),
        {"draft", "proof"},
    ),
    ("PyTorch", "another draft"): (
        asked("DraftModel"),
        asked("DraftModel", draft="hf://org/other"),
        {"draft", "proof"},
    ),
    ("PyTorch", "another length"): (
        asked("DraftModel"),
        asked("DraftModel", wish={"maxDraftLen": 5}),
        {"proof"},
    ),
    ("PyTorch", "another method"): (asked("DraftModel"), asked("Eagle3"), {"proof"}),
    ("PyTorch FP8", "another draft"): (
        asked("DraftModel", quantization={"weights": "FP8"}),
        asked("DraftModel", quantization={"weights": "FP8"}, draft="hf://org/other"),
        {"draft", "proof"},
    ),
    ("TensorRT", "heads are added"): (
        specs.spec(engine={"backend": "TensorRT"}),
        asked("Eagle", "TensorRT"),
        {"draft", "checkpoint", "engine", "proof"},
    ),
    ("TensorRT", "other heads"): (
        asked("Eagle", "TensorRT"),
        asked("Eagle", "TensorRT", draft="hf://org/other"),
        {"draft", "checkpoint", "engine", "proof"},
    ),
    ("TensorRT", "another length"): (
        asked("Eagle", "TensorRT"),
        asked("Eagle", "TensorRT", wish={"maxDraftLen": 5}),
        {"checkpoint", "engine", "proof"},
    ),
}


@pytest.mark.parametrize("case", DIFFER, ids=lambda case: f"{case[0]}: {case[1]}")
def test_a_change_makes_exactly_what_the_table_says_anew(case: tuple[str, str]) -> None:
    before, after, expected = DIFFER[case]
    one, two = keys(resolved(before)), keys(resolved(after))
    assert {name for name in one | two if one.get(name) != two.get(name)} == expected


# The chain.


def records(*found: tuple[str, str]) -> dict[tuple[str, str, str], Record]:
    return {
        (specs.CLAIM.uid, step, key): Record(step, key, specs.CLAIM.uid, RecordState.READY)
        for step, key in found
    }


def test_a_draft_is_needed_beside_the_served_model() -> None:
    found = resolved(asked("DraftModel"))
    model, draft = found.artifacts
    assert (found.serve_key, found.also) == (model.key, (draft.key,))
    assert draft.source_key == f"hf://meta-llama/Llama-3.2-1B-Instruct@{DRAFT_COMMIT}"
    assert missing(found, records()) == (model, draft)
    assert missing(found, records((STEP_MODEL, model.key))) == (draft,)
    assert missing(found, records((STEP_MODEL, model.key), (STEP_MODEL, draft.key))) == ()


def test_heads_are_there_before_the_checkpoint_that_is_made_of_them() -> None:
    found = resolved(asked("Medusa", "TensorRT"))
    assert [one.step for one in missing(found, records())] == [
        STEP_MODEL,
        STEP_MODEL,
        STEP_CHECKPOINT,
        STEP_ENGINE,
    ]
    _, heads, checkpoint, engine = missing(found, records())
    assert heads.inputs == {"uri": DRAFT, "part": "heads"}
    # The step looks at them before its tool reads them; the engine is made without.
    assert (checkpoint.also, engine.also) == ((heads.key,), ())
    assert load(dump(found)).artifacts == found.artifacts


def test_a_model_that_drafts_for_itself_is_fetched_once() -> None:
    uri = "hf://meta-llama/Llama-3.1-8B-Instruct@main"
    found = resolved(asked("DraftModel", draft=uri, quantization={"weights": "FP8"}))
    assert [one.step for one in found.artifacts] == [STEP_MODEL, STEP_CHECKPOINT]
    assert found.also == (found.model_key,)


def test_a_revision_keeps_its_draft_and_a_moved_name_changes_nothing() -> None:
    spec = asked("DraftModel")
    first = resolved(spec)
    assert load(json.loads(json.dumps(dump(first)))) == first
    moved = replace(first, draft=replace(first.draft, commit="e" * 40)) if first.draft else first
    again = resolved(spec, previous=moved)
    assert again.draft is not None
    assert again.draft.commit == "e" * 40


def test_neither_a_spec_s_draft_nor_a_revision_s_is_collected() -> None:
    for method, backend in RENDERED:
        spec = asked(method, backend)
        found = resolved(spec)
        named = named_by_spec(spec.model_dump(by_alias=True, mode="json"))
        assert {found.model_key, *found.also} <= named
        assert set(found.also) <= named_by_revision(dump(found), specs.CLAIM.uid)
    ours = f"pvc://models/shardwright/model/{'a' * 16}"
    assert "a" * 16 in named_by_spec(
        asked("DraftModel", draft=ours).model_dump(by_alias=True, mode="json")
    )


# Pods and Jobs.


def test_a_pod_is_told_to_check_the_draft_and_an_older_runner_reads_the_request() -> None:
    found = resolved(asked("DraftModel"))
    request = serve_request(found, specs.identity(), 0)
    (also,) = request.also
    assert (also.step, also.key) == (STEP_MODEL, found.also[0])
    assert also.artifact == draft_folder(found.spec)
    assert also.inputs == {"uri": DRAFT}
    assert decode(ServeRequest, encode(request)) == request
    older = json.loads(encode(request))
    del older["also"]
    assert decode(ServeRequest, json.dumps(older)).also == ()


def volumes(pod: dict[str, Any]) -> dict[str, str]:
    return {
        one["name"]: one["persistentVolumeClaim"]["claimName"]
        for one in pod["spec"]["volumes"]
        if "persistentVolumeClaim" in one
    }


@pytest.mark.parametrize(
    ("model", "draft", "mounted", "folder"),
    [
        ("pvc://models/m", "pvc://models/d", {}, "/shardwright/store/d"),
        ("pvc://base/m", "pvc://base/d", {"source": "base"}, "/shardwright/source/d"),
        ("pvc://models/m", "pvc://other/d", {"draft": "other"}, "/shardwright/draft/d"),
        (
            "pvc://base/m",
            "pvc://other/d",
            {"source": "base", "draft": "other"},
            "/shardwright/draft/d",
        ),
    ],
)
def test_a_draft_on_a_claim_is_loaded_where_it_lies(
    model: str, draft: str, mounted: dict[str, str], folder: str
) -> None:
    spec = asked("DraftModel", draft=draft, model={"uri": model})
    found = resolved(spec)
    (pod,) = group_pods(found, specs.identity(), "runner")
    assert volumes(pod) == {"store": "models", **mounted}
    assert draft_folder(spec) == folder
    assert block(spec)["speculative_model_dir"] == folder
    paths = {one["name"]: one["mountPath"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    assert all(folder.startswith(paths[name]) for name in list(mounted)[-1:])
    job = step_job(
        found.artifacts[1],
        attempt=1,
        owners=[specs.owner()],
        spec=spec,
        claim=specs.CLAIM,
        settings=Settings(),
        runner_config_map="runner",
    )
    claim = draft.removeprefix("pvc://").split("/")[0]
    extra = {"source": claim} if claim != "models" else {}
    assert volumes(job["spec"]["template"]) == {"store": "models", **extra}


def test_each_fetch_logs_in_with_its_own_secret() -> None:
    spec = asked(
        "DraftModel",
        model={"uri": "hf://org/model", "secretRef": {"name": "for-model"}},
        wish={"model": {"uri": DRAFT, "secretRef": {"name": "for-draft"}}},
    )
    logins = []
    for artifact in resolved(spec).artifacts:
        job = step_job(
            artifact,
            attempt=1,
            owners=[specs.owner()],
            spec=spec,
            claim=specs.CLAIM,
            settings=Settings(),
            runner_config_map="runner",
        )
        (container,) = job["spec"]["template"]["spec"]["containers"]
        logins.append(container["envFrom"][0]["secretRef"]["name"])
    assert logins == ["for-model", "for-draft"]


# What drafts for what.


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    found = refuse_draft(asked("DraftModel"), specs.LLAMA_8B, specs.facts(vocab_size=32000))
    assert found is not None
    assert (found.reason, found.source) == ("DraftDoesNotFit", "draft-vocabulary")
    assert "32,000" in found.message
    assert "128,256" in found.message
    assert refuse_draft(asked("DraftModel"), specs.LLAMA_8B, SMALL) is None


@pytest.mark.parametrize("method", ["Eagle", "Eagle3"])
def test_eagle_s_weights_must_be_as_wide_as_the_model(method: str) -> None:
    found = refuse_draft(asked(method), specs.LLAMA_8B, SMALL)
    assert found is not None
    assert (found.reason, found.source) == ("DraftDoesNotFit", "eagle-hidden-states")
    # Eagle3's own vocabulary is smaller, and mapped.
    fit = specs.facts(layers=1, vocab_size=32000)
    assert refuse_draft(asked(method), specs.LLAMA_8B, fit) is None


def known(name: str) -> ModelFacts:
    return specs.facts(bytes=0, config=pack_config(kept_config(catalogue_config(name), {})))


def test_multi_token_prediction_needs_the_model_s_own_layers() -> None:
    found = refuse_draft(asked("MTP"), known("Llama-3.1-8B"), None)
    assert found is not None
    assert (found.reason, found.source) == ("DraftDoesNotFit", "mtp-needs-layers")
    assert refuse_draft(asked("MTP"), known("DeepSeek-R1"), None) is None
    # What an earlier version fetched tells nothing of layers.
    assert refuse_draft(asked("MTP"), specs.LLAMA_8B, None) is None


def test_heads_without_facts_are_taken() -> None:
    assert refuse_draft(asked("Medusa", "TensorRT"), specs.LLAMA_8B, None) is None


# Memory.


def test_the_draft_takes_its_room_on_the_last_stage() -> None:
    from shardwright.plan.question import model_of  # noqa: PLC0415
    from shardwright.sizing.model import Model  # noqa: PLC0415

    model = model_of(known("Llama-3.1-70B"), "hf://meta-llama/Llama-3.1-70B")
    assert isinstance(model, Model)
    split = {"parallelism": {"tensor": 4, "pipeline": 2}}
    plain = memory_plan(specs.spec(engine={"backend": "PyTorch"}, **split), model, 80 * 2**30)
    with_draft = memory_plan(asked("DraftModel", **split), model, 80 * 2**30, known("Llama-3.1-8B"))
    assert plain is not None
    assert with_draft is not None
    assert [stage.draft for stage in plain.stages] == [0, 0]
    assert with_draft.stages[0] == plain.stages[0]
    # 16 GB of weights over four ranks.
    assert 3.5 * 10**9 < with_draft.stages[1].draft < 4.5 * 10**9
    assert with_draft.stages[1].kv_pool < plain.stages[1].kv_pool
    assert with_draft.stages[1].kv_bytes_per_token > plain.stages[1].kv_bytes_per_token


class Unfetchable(World):
    """A hub that has no draft."""

    def run(self, intent: CreateStep) -> None:
        artifact = intent.artifact
        lacking = f"{artifact.inputs['uri']}: no such repository"
        told = Report(PERMANENT, "ModelNotFound", lacking, step=artifact.step, key=artifact.key)
        self.report(intent, told)
        self.jobs[-1] = replace(self.jobs[-1], complete=False, failed=True)


def test_a_draft_that_cannot_be_fetched_is_told_by_its_field() -> None:
    world = Unfetchable()
    uri = "hf://acme/nothing@main"
    drafts = {"method": "DraftModel", "model": {"uri": uri}}
    world.edit(engine={"runtime": "VLLM"}, quantization={"weights": "None"}, speculative=drafts)
    status, reason, message = world.condition("ModelReady")
    assert (status, reason) == ("False", "ModelNotFound")
    assert message == (
        f"speculative.model: model {draft_key(world.spec)} failed for good: {uri}: no such "
        "repository; once mended, set the annotation shardwright.dev/restartedAt to try it again"
    )
    assert world.condition("Ready")[2] == message
    assert world.condition("Accepted")[1] == "FetchingModel"
