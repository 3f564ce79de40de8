"""Reading a config.json that anyone may have written: typed, bounded, and never executed.

A configuration is data from outside. Only known keys are read, each with a type and bounds; every
error names the key, its value, what is allowed and what to do. Nothing recurses into the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CONFIG_BYTES = 4 * 2**20
MAX_INDEX_BYTES = 64 * 2**20
MAX_LAYERS = 1024
MAX_WIDTH = 2**24
MAX_LIST = 65_536
MAX_TEXT = 512
_SHOWN = 60
# Keys of real files; any other is quoted and cut, since errors are printed to terminals.
_PLAIN_KEY = re.compile(r"\w{1,60}")


class ConfigError(ValueError):
    """A model's configuration does not say what sizing needs, or says something impossible.

    Attributes:
        key: The key, dotted from the top of the file.
    """

    def __init__(self, key: str, found: str, allowed: str, fix: str) -> None:
        super().__init__(f"config.json: {key} {found}; {allowed}: {fix}")
        self.key = key


_COMPLETE = "take config.json from the model's repository unchanged"


def shown(value: object) -> str:
    """A value as an error may print it: short, whatever it is."""
    if isinstance(value, str):
        text = json.dumps(value[: _SHOWN + 1])
    elif isinstance(value, bool) or value is None:
        text = json.dumps(value)
    elif isinstance(value, int):
        # str() of a huge integer is refused by Python or takes long.
        text = str(value) if value.bit_length() < 4 * _SHOWN else f"of {value.bit_length()} bits"
    elif isinstance(value, float):
        text = repr(value)
    elif isinstance(value, Mapping):
        text = f"a mapping of {len(value)} keys"
    elif isinstance(value, Sequence):
        text = f"a list of {len(value)} entries"
    else:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def load_json(text: bytes | str, *, limit: int = MAX_CONFIG_BYTES) -> Mapping[str, Any]:
    """Decode a file that must hold one JSON object of at most `limit` bytes.

    Raises:
        ConfigError: It is larger, no JSON, nested too deep, or no object.
    """
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise ConfigError("(file)", f"has {size} bytes", f"at most {limit} are read", _COMPLETE)
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ConfigError("(file)", "is nested too deep", "one flat object", _COMPLETE) from error
    except ValueError as error:
        reason = str(error)[:_SHOWN]
        raise ConfigError("(file)", f"is no JSON ({reason})", "one object", _COMPLETE) from error
    if not isinstance(value, Mapping):
        raise ConfigError("(file)", f"is {shown(value)}", "one object", _COMPLETE)
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


class Reader:
    """Typed access to one mapping of the file.

    Every method takes alternative names of a key: the first that is there, and not null, counts.
    The defaults stand in for keys that the file does not have.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        prefix: str = "",
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._values = values
        self._prefix = prefix
        self._defaults = defaults or {}

    def path(self, name: str) -> str:
        """A key as errors name it."""
        return f"{self._prefix}{name if _PLAIN_KEY.fullmatch(name) else shown(name)}"

    def find(self, *names: str) -> tuple[str, Any]:
        """The first of the names that has a value, and it; the first name and None otherwise."""
        for name in names:
            value = self._values.get(name)
            if value is not None:
                return name, value
        # A null in the file is an answer: it is not overruled by a family's default.
        for name in names:
            if name in self._defaults and name not in self._values:
                return name, self._defaults[name]
        return names[0], None

    def integer(self, *names: str, low: int, high: int, default: int | None = None) -> int:
        """A whole number within bounds; required unless there is a default."""
        name, value = self.find(*names)
        if value is None:
            if default is not None:
                return default
            raise self.missing(*names)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, value, f"a whole number from {low} to {high}")
        return value

    def number(self, *names: str, low: float, high: float, default: float) -> float:
        """A number within bounds."""
        name, value = self.find(*names)
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise self.wrong(name, value, f"a number from {low} to {high}")
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        name, value = self.find(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, *names: str, default: str = "") -> str:
        """A short text."""
        name, value = self.find(*names)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self.wrong(name, value, f"a text of at most {MAX_TEXT} characters")
        return value

    def texts(self, *names: str, limit: int = MAX_LIST) -> tuple[str, ...]:
        """A list of short texts; empty when the key is missing."""
        name, value = self.find(*names)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or len(value) > limit:
            raise self.wrong(name, value, f"a list of at most {limit} texts")
        for entry in value:
            if not isinstance(entry, str) or len(entry) > MAX_TEXT:
                raise self.wrong(name, entry, f"a list of texts of at most {MAX_TEXT} characters")
        return tuple(value)

    def integers(self, *names: str, low: int, high: int) -> tuple[int, ...]:
        """A list of whole numbers within bounds; empty when the key is missing."""
        name, value = self.find(*names)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or len(value) > MAX_LIST:
            raise self.wrong(name, value, f"a list of at most {MAX_LIST} whole numbers")
        for entry in value:
            if isinstance(entry, bool) or not isinstance(entry, int) or not low <= entry <= high:
                raise self.wrong(name, entry, f"whole numbers from {low} to {high}")
        return tuple(value)

    def section(self, *names: str) -> Reader | None:
        """A mapping below a key; None when the key is missing."""
        name, value = self.find(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Reader(value, prefix=f"{self.path(name)}.")

    def with_defaults(self, defaults: Mapping[str, Any]) -> Reader:
        """The same mapping, with values for keys that the file leaves out."""
        return Reader(self._values, self._prefix, defaults)

    def items(self) -> Mapping[str, Any]:
        """The mapping itself."""
        return self._values

    def missing(self, *names: str) -> ConfigError:
        """The error of a key that must be there."""
        also = f" (or {', '.join(names[1:])})" if names[1:] else ""
        return ConfigError(
            self.path(names[0]),
            f"is missing{also}",
            "the model's size cannot be known without it",
            _COMPLETE,
        )

    def wrong(self, name: str, value: object, allowed: str) -> ConfigError:
        """The error of a value that cannot be."""
        return ConfigError(
            self.path(name), f"is {shown(value)}", f"allowed is {allowed}", _COMPLETE
        )
