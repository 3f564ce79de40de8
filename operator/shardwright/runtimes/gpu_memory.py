"""How much memory a GPU has, going by its product's name: enough to size a build step."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright.observe.products import base_product

# In 10⁹ bytes, where the product's name does not say it; from the vendor's data sheets.
_MEMORY_GB: Mapping[str, int] = {
    "GB200": 186,
    "B200": 180,
    "H200": 141,
    "L40S": 48,
    "L40": 48,
    "A10": 24,
    "A10G": 24,
    "A30": 24,
    "L4": 24,
    "T4": 16,
}
# Most data-centre GPUs served here have it. A guess that is too small only takes more GPUs.
_DEFAULT_GB = 80
_SIZE = re.compile(r"(\d+)GB")


def gpu_memory_bytes(product: str) -> int:
    """Memory of one GPU in bytes; 80·10⁹ where the name does not tell."""
    name = base_product(product)
    size = _SIZE.search(name)
    if size:
        return int(size.group(1)) * 10**9
    known = next((_MEMORY_GB[part] for part in name.split("-") if part in _MEMORY_GB), _DEFAULT_GB)
    return known * 10**9
