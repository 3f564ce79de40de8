"""Whether a base model, built or started for certain limits, can take an adapter. Pure.

Asked before anything of the adapter reaches a server: the servers' own refusals come late, differ
in words, and some of them load what they then leave out. The tuple at the end is the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shardwright.api.lora import HF_NAMES, LoRA, module_of
from shardwright.api.serving import Runtime
from shardwright.plan.question import model_of
from shardwright.runner.contract import AdapterFacts, ModelFacts
from shardwright.runtimes.base import Refusal
from shardwright.sizing.model import Model
from shardwright.sizing.modules import matrices

_HUB = "hf://"
_NAMES = frozenset(HF_NAMES.values())
# Which of PEFT's other scales a runtime computes with; what it does not know it passes over without
# a word. vLLM 0.33.0, vllm/lora/peft_helper.py: alpha and r, or its root. SGLang 0.5.23,
# sglang/srt/lora/lora.py: alpha and r. TensorRT-LLM 1.2, tensorrt_llm/lora_manager.py: alpha, or by
# the root, and the rank that each module's matrices have.
_SCALES: Mapping[Runtime, frozenset[str]] = {
    Runtime.VLLM: frozenset({"use_rslora"}),
    Runtime.TENSORRT_LLM: frozenset({"use_rslora", "rank_pattern"}),
}


@dataclass(frozen=True, slots=True)
class Question:
    """An adapter and what it is to be loaded into; `base` is None where its sizes are not known."""

    name: str
    facts: AdapterFacts
    lora: LoRA
    served_name: str
    model: ModelFacts
    base: Model | None
    runtime: Runtime


def refuse_adapter(
    name: str,
    facts: AdapterFacts,
    lora: LoRA,
    *,
    served_name: str,
    uri: str,
    model: ModelFacts,
    runtime: Runtime,
) -> Refusal | None:
    """The first of CHECKS that objects.

    Args:
        name: The adapter's.
        facts: What its files say.
        lora: The limits of the spec that asks for it.
        served_name: The base model's name in requests.
        uri: The base model's.
        model: Its facts, with its config where that is kept.
        runtime: What serves.
    """
    known = model_of(model, uri)
    base = None if isinstance(known, Refusal) else known
    asked = Question(name, facts, lora, served_name, model, base, runtime)
    return next((refusal for check in CHECKS if (refusal := check(asked))), None)


def name_taken(asked: Question) -> Refusal | None:
    """Requests could not tell the adapter from its base."""
    if asked.name != asked.served_name:
        return None
    return Refusal(
        "AdapterNameTaken",
        f"its name is model.servedName {asked.served_name}, by which requests ask for the base "
        "model; give it another name",
    )


def more_than_low_rank(asked: Question) -> Refusal | None:
    """Something beside low-rank matrices, which servers refuse or leave out."""
    features = asked.facts.features
    if not features:
        return None
    return Refusal(
        "AdapterNotSupported",
        f"it has {', '.join(features[:3])} beside low-rank matrices of projections, which no "
        "runtime here serves; train it without, or merge it into its base and deploy that",
    )


def other_scale(asked: Question) -> Refusal | None:
    """A scale that the runtime would leave out without a word: the answers would be wrong."""
    unknown = [
        name for name in asked.facts.scales if name not in _SCALES.get(asked.runtime, frozenset())
    ]
    if not unknown:
        return None
    able = [str(one) for one, known in _SCALES.items() if known.issuperset(asked.facts.scales)]
    other = f"serve it with engine.runtime {' or '.join(able)}, " if able else ""
    return Refusal(
        "AdapterNotSupported",
        f"it is scaled by {', '.join(unknown)}, which {asked.runtime} leaves out without an error: "
        f"its answers would be wrong; {other}train it without, or merge it into its base and "
        "deploy that",
    )


def unknown_modules(asked: Question) -> Refusal | None:
    """Projections that are none of a decoder's seven."""
    unknown = [name for name in asked.facts.modules if module_of(name) is None]
    if not unknown:
        return None
    return Refusal(
        "AdapterNotSupported",
        f"it changes {', '.join(unknown[:3])}; adapters may change {', '.join(sorted(_NAMES))}: "
        "merge it into its base and deploy that",
    )


def rank_too_high(asked: Question) -> Refusal | None:
    """More rank than the slots were made for."""
    rank, limit = asked.facts.rank, asked.lora.max_rank
    if rank <= limit:
        return None
    return Refusal(
        "AdapterRankTooHigh",
        f"its rank {rank} exceeds lora.maxRank {limit}; raise lora.maxRank to {rank}: engines are "
        "rebuilt, other runtimes restarted, one replica at a time",
    )


def module_not_built(asked: Question) -> Refusal | None:
    """Projections that the base was not built to have adapted."""
    wanted = [module_of(name) for name in asked.facts.modules]
    lacking = [
        module.value for module in wanted if module is not None and module not in asked.lora.modules
    ]
    if not lacking:
        return None
    return Refusal(
        "AdapterModuleNotBuilt",
        f"it changes {', '.join(HF_NAMES[m] for m in wanted if m and m.value in lacking)}, and "
        f"lora.targetModules lacks {', '.join(lacking)}; add them: engines are rebuilt, other "
        "runtimes restarted, one replica at a time",
    )


def other_base(asked: Question) -> Refusal | None:
    """Matrices of another size than the base model's, or of layers that it has not."""
    facts, model = asked.facts, asked.model
    if facts.layers > model.layers:
        return _other(asked, f"it changes layer {facts.layers - 1}, the model has {model.layers}")
    sizes = _sizes(asked)
    for name, (inputs, outputs) in facts.sizes.items():
        known = sizes.get(name)
        if known is None or known == (inputs, outputs):
            continue
        return _other(
            asked,
            f"its {name} is {inputs} → {outputs}, the model's {known[0]} → {known[1]}",
        )
    return None


def _sizes(asked: Question) -> Mapping[str, tuple[int, int]]:
    """Inputs and outputs of the model's projections, where all its layers agree."""
    if asked.base is not None:
        found: dict[str, set[tuple[int, int]]] = {}
        for layer in set(asked.base.layers):
            for part in matrices(layer, asked.base.hidden):
                name = part.path.rsplit(".", 1)[-1]
                if name in _NAMES:
                    found.setdefault(name, set()).add((part.inputs, part.outputs))
        return {name: next(iter(sizes)) for name, sizes in found.items() if len(sizes) == 1}
    model = asked.model
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return {
        "q_proj": (model.hidden_size, queries),
        "k_proj": (model.hidden_size, keys),
        "v_proj": (model.hidden_size, keys),
        "o_proj": (queries, model.hidden_size),
    }


def _other(asked: Question, found: str) -> Refusal:
    said = f" (by its own word on {asked.facts.base})" if asked.facts.base else ""
    return Refusal(
        "AdapterOfAnotherModel",
        f"it was trained on another model{said}: {found}; name the adapter of this model",
    )


def other_name(facts: AdapterFacts, uri: str) -> str:
    """What to tell of an adapter that fits but names another base model; empty when it agrees.

    A base and what was tuned from it have the same sizes, and adapters of one are often meant for
    the other; only their author knows.
    """
    served = uri.removeprefix(_HUB).split("@", 1)[0] if uri.startswith(_HUB) else ""
    if not served or not facts.base or served.lower() == facts.base.lower():
        return ""
    return f"trained on {facts.base}, served on {served}, which has the same sizes"


Check = Callable[[Question], Refusal | None]
CHECKS: tuple[Check, ...] = (
    name_taken,
    other_base,
    more_than_low_rank,
    other_scale,
    unknown_modules,
    rank_too_high,
    module_not_built,
)
