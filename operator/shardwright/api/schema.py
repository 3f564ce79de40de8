"""From pydantic models to the structural schema that a CustomResourceDefinition holds.

The API server takes a small part of JSON Schema: everything inline, one type a node, no `const`, no
null branch, bounds in their older boolean form. What has no structural form is an error here, with
the path to it, never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, NoDefault
from pydantic_core import core_schema

from shardwright.api.model import Model
from shardwright.api.rules import Rule

Schema = dict[str, Any]

_VALIDATIONS = "x-kubernetes-validations"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_PRESERVE = "x-kubernetes-preserve-unknown-fields"
# Hints of our own, in a field's json_schema_extra: what identifies an item of a list, what the keys
# of a map are called when one is refused, and that the model, not the API server, fills a field in.
_LIST_KEYS = "x-list-map-keys"
_KEY_FORM = "x-key-form"
_FILLED_IN = "x-filled-in"

# Keywords that mean the same on both sides, in the order they are written out.
_KEPT = (
    "type",
    "description",
    "format",
    "default",
    "enum",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    _INT_OR_STRING,
    _PRESERVE,
    _VALIDATIONS,
)
# Keywords that are rewritten below, or say nothing that the API server does not do by itself.
_HANDLED = frozenset(
    {
        "title",
        "const",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "items",
        "uniqueItems",
        _LIST_KEYS,
        _KEY_FORM,
        _FILLED_IN,
    }
)
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


class SchemaError(ValueError):
    """A model says something that a structural schema cannot; the message names the path."""


class _Generator(GenerateJsonSchema):
    """pydantic's own generator, with our rules and with the defaults that factories make."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        made = super().model_schema(schema)
        rules: tuple[Rule, ...] = getattr(schema["cls"], "rules", ())
        if rules:
            made[_VALIDATIONS] = [rule.schema() for rule in rules]
        return made

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:  # noqa: ANN401 - as in pydantic
        factory = schema.get("default_factory")
        value = factory() if factory is not None else schema.get("default", NoDefault)  # type: ignore[call-arg]
        if not isinstance(value, BaseModel):
            return value
        if value != type(value)():
            raise SchemaError(
                f"the default {value!r} differs from an empty {type(value).__name__}: put the "
                "values into its own fields, so that an empty object gets them too"
            )
        # The API server fills in the fields of an empty object, but it evaluates an object's own
        # rules on the default as it stands, and they may only look at fields that are there.
        rules: tuple[Rule, ...] = getattr(type(value), "rules", ())
        return value.model_dump(mode="json", by_alias=True, exclude_none=True) if rules else {}


def structural(model: type[Model], *, defaults: bool = True) -> Schema:
    """The structural schema of a model and all it holds.

    `defaults=False` leaves every default out: a status is written whole by one writer, and a
    default would be an answer that nobody gave.

    Raises:
        SchemaError: When a field has no structural form: a union of two types (other than integer
            and string), a model that holds itself, a tuple, an unknown keyword.
    """
    mode: JsonSchemaMode = "validation"
    raw = model.model_json_schema(by_alias=True, schema_generator=_Generator, mode=mode)
    definitions = raw.pop("$defs", {})
    return _Converter(definitions, defaults=defaults).node(raw, "", ())


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], *, defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def node(self, raw: Schema, path: str, inside: tuple[str, ...]) -> Schema:
        """One node; `inside` are the definitions that it lies in."""
        flat, inside = self._flat(raw, path, inside)
        unknown = set(flat) - set(_KEPT) - _HANDLED
        if unknown:
            raise SchemaError(f"{path or '.'}: no structural form for {', '.join(sorted(unknown))}")
        made = {name: flat[name] for name in _KEPT if name in flat}
        if not self._defaults or _FILLED_IN in flat:
            made.pop("default", None)
        if "const" in flat:
            made["enum"] = [flat["const"]]
            made.setdefault("type", _TYPES[type(flat["const"])])
        for bound, kept in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if bound in flat:
                made[kept] = flat[bound]
                made[bound] = True
        kind = made.get("type")
        if kind is None and not made.get(_INT_OR_STRING):
            raise SchemaError(f"{path or '.'}: has no type; Any has no structural form")
        if kind == "object":
            self._object(flat, made, path, inside)
        elif kind == "array":
            self._array(flat, made, path, inside)
        return made

    def _flat(
        self, raw: Schema, path: str, inside: tuple[str, ...]
    ) -> tuple[Schema, tuple[str, ...]]:
        """References put in place, the null branch of an Optional gone, int | str recognised."""
        while "$ref" in raw or "anyOf" in raw:
            outer = {name: value for name, value in raw.items() if name not in ("$ref", "anyOf")}
            if "$ref" in raw:
                name = raw["$ref"].rsplit("/", 1)[-1]
                if name in inside:
                    raise SchemaError(
                        f"{path or '.'}: {name} holds itself, which cannot be inlined"
                    )
                inside = (*inside, name)
                raw = {**self._definitions[name], **outer}
                continue
            branches = [branch for branch in raw["anyOf"] if branch.get("type") != "null"]
            if outer.get("default", 0) is None:
                del outer["default"]  # null and absent are the same to the API server
            if len(branches) == 1:
                raw = {**branches[0], **outer}
            elif sorted(str(branch.get("type")) for branch in branches) == ["integer", "string"]:
                merged = {key: value for branch in branches for key, value in branch.items()}
                del merged["type"]
                raw = {**merged, **outer, _INT_OR_STRING: True}
            else:
                raise SchemaError(
                    f"{path or '.'}: a union of {len(branches)} types has no structural form; use "
                    "one type, or fields of which a rule allows one"
                )
        return raw, inside

    def _object(self, flat: Schema, made: Schema, path: str, inside: tuple[str, ...]) -> None:
        if "properties" in flat:
            # additionalProperties: false goes; the API server prunes, and refuses when strict
            made["properties"] = {
                name: self.node(child, f"{path}.{name}", inside)
                for name, child in flat["properties"].items()
            }
            if flat.get("required"):
                made["required"] = list(flat["required"])
            return
        patterns: Schema = flat.get("patternProperties", {})
        if len(patterns) > 1:
            raise SchemaError(f"{path or '.'}: more than one pattern of keys")
        values = next(iter(patterns.values()), flat.get("additionalProperties", True))
        if values is True or values is False:
            made[_PRESERVE] = True
            return
        made["additionalProperties"] = self.node(values, f"{path}.*", inside)
        pattern = next(iter(patterns), "")
        form = flat.get(_KEY_FORM, f"of the form {pattern}")
        rule = _key_rule(pattern, flat.get("propertyNames", {}), form)
        if rule is not None:
            made[_VALIDATIONS] = [*made.get(_VALIDATIONS, []), rule.schema()]

    def _array(self, flat: Schema, made: Schema, path: str, inside: tuple[str, ...]) -> None:
        if "items" not in flat:
            raise SchemaError(f"{path or '.'}: a list without a type of its items")
        made["items"] = self.node(flat["items"], f"{path}[]", inside)
        # as defaults do not reach into a list's default, these are what server-side apply merges by
        if _LIST_KEYS in flat:
            made["x-kubernetes-list-type"] = "map"
            made["x-kubernetes-list-map-keys"] = list(flat[_LIST_KEYS])
        else:
            made["x-kubernetes-list-type"] = "set" if flat.get("uniqueItems") else "atomic"


def _key_rule(pattern: str, names: Schema, form: str) -> Rule | None:
    """Keys of a map as a rule: a structural schema has no words for them."""
    checks = []
    if "minLength" in names:
        checks.append(f"key.size() >= {names['minLength']}")
    if "maxLength" in names:
        checks.append(f"key.size() <= {names['maxLength']}")
    if pattern:
        checks.append(f"key.matches(r'{pattern}')")
    if not checks:
        return None
    fits = " && ".join(checks)
    return Rule(
        f"self.all(key, {fits})",
        f"each key must be {form}",
        message_expression=f"'keys %s must be {form}'.format([self.filter(key, !({fits}))])",
    )
