"""YAML as people write it: read safely, and with no key of a mapping lost to a second one.

PyYAML takes the last of equal keys without a word; kubectl refuses them, and so is here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import yaml

_SHOWN = 80
_TOO_DEEP = "it is nested too deeply"
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Plain values only, and each key of a mapping once."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - PyYAML's own signature
        """What PyYAML fails at in other words, a date with a month 13 for one, told with its line.

        Raises:
            yaml.YAMLError: It is not what it looks like, or says of itself that it is.
        """
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(
                None,
                None,
                f"{str(node.value)[:_SHOWN]!r} is no {kind}: write it in quotes if it is a text",
                node.start_mark,
            ) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's own signature
        seen: dict[object, yaml.Node] = {}
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    "while reading a mapping",
                    node.start_mark,
                    f"the key {key.value!r} is there twice, first in line "
                    f"{seen[key.value].start_mark.line + 1}: leave one of them out",
                    key.start_mark,
                )
            seen[key.value] = key
        return super().construct_mapping(node, deep)


def load(text: str) -> Any:  # noqa: ANN401 - any YAML
    """The one document of a text.

    Raises:
        yaml.YAMLError: It is no YAML, or has a key twice; the message has the line.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error


def load_all(text: str) -> Iterator[Any]:
    """All documents of a text, one by one.

    Raises:
        yaml.YAMLError: As `load`, when it comes to the place.
    """
    try:
        yield from yaml.load_all(text, _Loader)
    except RecursionError as error:
        raise yaml.YAMLError(_TOO_DEEP) from error
