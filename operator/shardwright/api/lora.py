"""Adapters of one base model: the limits that are fixed when it is built, and the adapters.

Limits decide what is built or started. The list of adapters decides neither: adapters within the
limits are loaded into what serves, and taken out of it, while it serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints, field_validator, model_validator

from shardwright.api.model import Model, SecretReference
from shardwright.api.rules import Rule
from shardwright.api.scalars import Int, unique_by
from shardwright.api.serving import URI

MAX_RANK = 512
MAX_LOADED = 64
MAX_ADAPTERS = 64


class TargetModule(StrEnum):
    """A projection of a layer that adapters may change, as TensorRT-LLM names it."""

    ATTN_Q = "attn_q"
    ATTN_K = "attn_k"
    ATTN_V = "attn_v"
    ATTN_DENSE = "attn_dense"
    MLP_H_TO_4H = "mlp_h_to_4h"
    MLP_4H_TO_H = "mlp_4h_to_h"
    MLP_GATE = "mlp_gate"


HF_NAMES: Mapping[TargetModule, str] = MappingProxyType(
    {
        TargetModule.ATTN_Q: "q_proj",
        TargetModule.ATTN_K: "k_proj",
        TargetModule.ATTN_V: "v_proj",
        TargetModule.ATTN_DENSE: "o_proj",
        TargetModule.MLP_H_TO_4H: "gate_proj",
        TargetModule.MLP_4H_TO_H: "down_proj",
        TargetModule.MLP_GATE: "up_proj",
    }
)
"""What transformers' models, and so the adapters, call them.

After `tensorrt_llm/lora_manager.py` (`get_default_trtllm_modules_to_hf_modules`): the gated block's
first projection is `mlp_h_to_4h`, and `mlp_gate` is what transformers calls `up_proj`.
"""

_NO_PARENT = "uri must not contain '..': a path stays inside its claim, bucket or repository"


class Adapter(Model):
    """One adapter, in PEFT's form: adapter_config.json beside adapter_model.safetensors."""

    name: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=63),
    ] = Field(description="What requests ask for.")
    uri: Annotated[str, StringConstraints(pattern=URI, max_length=512)] = Field(
        description="Where its files are, written like model.uri; a pvc:// folder must be on the "
        "claim of storage or of the model."
    )
    secret_ref: SecretReference | None = Field(
        default=None, description="Credentials for fetching; the model's are not used."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("!self.uri.contains('..')", _NO_PARENT, field_path=".uri"),
    )

    @model_validator(mode="after")
    def _stays_inside(self) -> Adapter:
        if ".." in self.uri:
            raise ValueError(_NO_PARENT)
        return self


_USUAL = [TargetModule.ATTN_Q, TargetModule.ATTN_K, TargetModule.ATTN_V]


class LoRA(Model):
    """Adapters that one base model serves; left out, it takes none."""

    max_rank: Int = Field(
        default=16, ge=1, le=MAX_RANK, description="Highest rank of an adapter; built in."
    )
    max_loaded: Int = Field(
        default=8,
        ge=1,
        le=MAX_LOADED,
        description="Adapters on the GPUs at a time; others wait in host memory.",
    )
    target_modules: Annotated[
        list[TargetModule],
        Field(min_length=1, max_length=len(TargetModule), json_schema_extra={"uniqueItems": True}),
    ] = Field(default=_USUAL, description="Projections that adapters may change; built in.")
    adapters: Annotated[list[Adapter], Field(max_length=MAX_ADAPTERS), unique_by("name")] = Field(
        default_factory=list,
        description="Loaded and unloaded while it serves; nothing is rebuilt or restarted.",
        json_schema_extra={"x-list-map-keys": ["name"]},
    )

    @field_validator("target_modules")
    @classmethod
    def _once_each(cls, modules: list[TargetModule]) -> list[TargetModule]:
        twice = sorted({module for module in modules if modules.count(module) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is given twice; each may stand once")
        return modules

    @property
    def modules(self) -> tuple[TargetModule, ...]:
        """The target modules in one order, whichever way they were written."""
        return tuple(module for module in TargetModule if module in self.target_modules)

    @property
    def hf_modules(self) -> tuple[str, ...]:
        """The same by the names of transformers' models."""
        return tuple(HF_NAMES[module] for module in self.modules)


def module_of(name: str) -> TargetModule | None:
    """The module that an adapter calls `name`, its last part as in `model.layers.0.…q_proj`."""
    last = name.rsplit(".", 1)[-1]
    return next((module for module, known in HF_NAMES.items() if known == last), None)
