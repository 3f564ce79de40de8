"""YAML as people write it: read safely, and with no key of a mapping lost to a second one.

PyYAML takes the last of equal keys without a word; kubectl refuses them, and so is here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import yaml

_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Plain values only, and each key of a mapping once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's own signature
        seen: dict[object, yaml.Node] = {}
        for key, _ in node.value:
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
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader


def load_all(text: str) -> Iterator[Any]:
    """All documents of a text, one by one.

    Raises:
        yaml.YAMLError: As `load`, when it comes to the place.
    """
    yield from yaml.load_all(text, _Loader)
