"""What the models take and refuse, and that the generated schema says the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, event, given, settings
from pydantic import ValidationError
from tests.support.specs import MINIMAL_SPEC, SPEC_SCHEMA, manifest, put, specs

from shardwright.api.asked import AskedSpec
from shardwright.api.engines import with_defaults
from shardwright.api.resource import NAME_LIMIT, LLMDeployment, name_problem
from shardwright.api.spec import Runtime

# long regular expressions are slow to draw from; the number of examples bounds the time
SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]


def _refusal(spec: Mapping[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        AskedSpec.read(spec)
    return str(caught.value)


def _for_jsonschema(node: Mapping[str, Any]) -> dict[str, Any]:
    """The structural schema in words that `jsonschema` knows (draft 4), strict about fields."""
    made = {name: value for name, value in node.items() if not name.startswith("x-kubernetes")}
    if node.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if "pattern" in made:
        # `$` of Python also matches before a last newline; in Go and Rust it does not
        made["pattern"] = made["pattern"][:-1] + r"\Z"
    if "properties" in node:
        made["properties"] = {name: _for_jsonschema(x) for name, x in node["properties"].items()}
        made["additionalProperties"] = False
    elif "additionalProperties" in node:
        made["additionalProperties"] = _for_jsonschema(node["additionalProperties"])
    if "items" in node:
        made["items"] = _for_jsonschema(node["items"])
    return made


_VALIDATOR = jsonschema.Draft4Validator(_for_jsonschema(SPEC_SCHEMA))


def _as_stored(node: Mapping[str, Any], value: Any) -> Any:
    """Nulls of declared fields and of maps dropped and defaults filled in, as the server does."""
    if "properties" in node and isinstance(value, dict):
        given_ = {name: item for name, item in value.items() if item is not None}
        for name, child in node["properties"].items():
            if name not in given_ and "default" in child:
                given_[name] = child["default"]
        children = node["properties"]
        return {
            name: _as_stored(children[name], item) if name in children else item
            for name, item in given_.items()
        }
    if "additionalProperties" in node and isinstance(value, dict):
        return {name: item for name, item in value.items() if item is not None}
    if "items" in node and isinstance(value, list):
        return [_as_stored(node["items"], item) for item in value]
    return value


def _duplicates(node: Mapping[str, Any], value: Any) -> bool:
    if "properties" in node:
        return any(
            _duplicates(x, value[name]) for name, x in node["properties"].items() if name in value
        )
    keys = node.get("x-kubernetes-list-map-keys")
    if not keys:
        return False
    found = [tuple(item[key] for key in keys) for item in value]
    return len(set(found)) < len(found)


def _is_a_rule(error: Mapping[str, Any]) -> bool:
    """What the schema says as CEL: our own validators, and the form of a map's keys."""
    return error["type"] == "value_error" or error["loc"][-1] == "[key]"


@settings(max_examples=250, deadline=None, suppress_health_check=SLOW)
@given(specs())
def test_models_and_generated_schema_take_and_refuse_the_same_shapes(spec: dict[str, Any]) -> None:
    stored = _as_stored(SPEC_SCHEMA, spec)
    fits = _VALIDATOR.is_valid(stored) and not _duplicates(SPEC_SCHEMA, stored)
    try:
        read = AskedSpec.read(spec)
    except ValidationError as error:
        wrong = [entry for entry in error.errors() if not _is_a_rule(entry)]
        event("refused by shape" if wrong else "refused by a rule")
        assert fits is not bool(wrong), wrong
    else:
        event("taken")
        assert fits, list(_VALIDATOR.iter_errors(stored))
        dumped = read.model_dump(mode="json", by_alias=True, exclude_none=True)
        # The runtime decides these two where they are left out; the API server does not know it.
        stored["engine"] = with_defaults(stored["engine"], Runtime.TENSORRT_LLM)
        assert dumped == stored


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(specs())
def test_what_is_stored_reads_as_what_was_written(spec: dict[str, Any]) -> None:
    try:
        read = AskedSpec.read(spec)
    except ValidationError:
        return
    assert AskedSpec.read(_as_stored(SPEC_SCHEMA, spec)) == read


def test_smallest_spec_needs_a_model_and_a_claim() -> None:
    smallest = {name: MINIMAL_SPEC[name] for name in ("model", "storage")}
    assert AskedSpec.read(smallest).replicas == 1
    message = _refusal({})
    for field in ("model", "storage"):
        assert f"{field}\n  Field required" in message


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("parallelism.tensor", 0, "greater than or equal to 1"),
        ("parallelism.tensor", "8", "valid integer"),
        ("parallelism.tensor", True, "valid integer"),
        ("model.trustRemoteCode", 1, "valid boolean"),
        ("model.trustRemoteCode", "true", "valid boolean"),
        ("replicas", -1, "greater than or equal to 0"),
        ("engine.limits.maxInputLen", 9000, "maxInputLen 9000 exceeds maxSeqLen 8192"),
        ("engine.limits.maxBatchSize", 9000, "maxBatchSize 9000 exceeds maxNumTokens 8192"),
        ("engine.limits.gpuMemoryFraction", 1, "less than 1"),
        ("workload.inputLen", 5000, "workload.inputLen exceeds engine.limits.maxInputLen 4096"),
        ("workload", {"inputLen": 4000, "outputLen": 5000}, "exceed engine.limits.maxSeqLen 8192"),
        ("workload.objective", "Fast", "'Latency', 'Throughput', 'Balanced' or 'Offline'"),
        ("quantization.weights", "auto", "Input should be 'Auto'"),
        ("rollout.maxUnavailable", 0, "maxSurge and maxUnavailable cannot both be 0"),
        ("model.uri", "ftp://x/y", "uri ftp://x/y: write hf://org/name@revision"),
        ("model.uri", "pvc://models/../other", "must not contain '..'"),
        ("model.unheardOf", 1, "Extra inputs are not permitted"),
        ("model.served_name", "x", "Extra inputs are not permitted"),
        ("engine.backend", "Tensor", "'TensorRT' or 'PyTorch'"),
        ("pod.env", [{"name": "SHARDWRIGHT_X"}], "env SHARDWRIGHT_X"),
        ("pod.env", [{"name": "A"}, {"name": "A"}], "name 'A' is given twice"),
        ("pod.imagePullSecrets", [{"name": "a"}, {"name": "a"}], "name 'a' is given twice"),
        (
            "placement.tolerations",
            [{"operator": "Exists", "value": "x"}],
            "value x is not looked at",
        ),
        ("placement.tolerations", [{"value": "x"}], "operator must be Exists when key is empty"),
        (
            "placement.tolerations",
            [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3}],
            "tolerationSeconds needs effect NoExecute",
        ),
        ("pod.resources.cpu", 0, "quantity 0 must be at least 1"),
        ("pod.resources.cpu", "0.0", "quantity 0.0 must be greater than 0"),
        ("pod.resources.cpu", 8.5, "8.5 is no quantity: write a whole number, or a text in"),
        ("pod.resources.cpu", True, "True is no quantity: write a whole number, or a text in"),
        ("pod.resources.memory", "64GB", "'64GB' is no quantity"),
    ],
)
def test_refusal_names_the_field_the_value_and_the_limit(path: str, value: Any, said: str) -> None:
    message = _refusal(put(MINIMAL_SPEC, path, value))
    assert said in message
    assert path.split(".", maxsplit=1)[0] in message


@pytest.mark.parametrize("form", [8, "8", "500m", "1.5", "64Gi"])
def test_a_quantity_keeps_the_form_the_user_wrote(form: int | str) -> None:
    spec = AskedSpec.read(put(MINIMAL_SPEC, "pod.resources.cpu", form))
    kept = spec.model_dump(mode="json", by_alias=True)["pod"]["resources"]["cpu"]
    assert kept == form
    assert type(kept) is type(form)


@pytest.mark.parametrize(
    "path", ["engine", "engine.image", "model.secretRef", "replicas", "pod.env"]
)
def test_null_means_not_given(path: str) -> None:
    spec = AskedSpec.read(put(MINIMAL_SPEC, path, None))
    assert spec == AskedSpec.read(MINIMAL_SPEC)


def test_null_inside_the_runtimes_own_configuration_is_kept() -> None:
    spec = AskedSpec.read(put(MINIMAL_SPEC, "engine.config", {"scheduler": None}))
    assert spec.engine.config == {"scheduler": None}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a", ""),
        ("llama-405b", ""),
        ("x" * NAME_LIMIT, ""),
        ("x" * (NAME_LIMIT + 1), f"has {NAME_LIMIT + 1} characters, the limit is {NAME_LIMIT}"),
        ("4llama", "must start with a letter"),
        ("llama.405b", "hold only a-z, 0-9 and '-'"),
        ("llama-", "end with a letter or digit"),
        ("Llama", "must start with a letter"),
        ("llama\n", "hold only"),
    ],
)
def test_a_name_must_leave_room_for_the_pods_named_after_it(name: str, said: str) -> None:
    assert said in name_problem(name)
    assert bool(name_problem(name)) is bool(said)
    whole = manifest(MINIMAL_SPEC, name)
    if not said:
        assert LLMDeployment.read(whole).metadata.name == name
        return
    with pytest.raises(ValidationError, match=r"metadata\.name"):
        LLMDeployment.read(whole)
