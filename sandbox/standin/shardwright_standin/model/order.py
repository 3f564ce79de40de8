"""Sums whose order does not depend on how the model is cut.

Floating-point addition is not associative, and BLAS picks its order by shape: a rank that holds two
heads of eight would round otherwise than one that holds all. Here every dot product runs in index
order and partial sums of head groups are added along one fixed binary tree, of which each rank of a
power-of-two split holds a whole subtree. So logits are equal to the last bit for every split, and
a difference in tokens is a fault in the splitting, never rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# 8 MB in float64.
_PRODUCTS = 2**20


def project(rows: Array, weight: Array) -> Array:
    """`rows` (…, n, inner) times `weight` (…, inner, columns), summed over inner in index order.

    An element of the result depends on its own row and column only, so neither the other rows of a
    batch nor the other columns of a rank change it. One column alone would be summed pairwise.

    Raises:
        ValueError: With fewer than two columns.
    """
    if weight.shape[-1] < 2:  # noqa: PLR2004
        raise ValueError(
            f"a weight of {weight.shape[-1]} column is summed in another order; give 2"
        )
    count = rows.shape[-2]
    # Rows a pass: all their products are held at once, and a long prompt has thousands of rows.
    size = max(1, _PRODUCTS // max(1, weight.size))
    if count <= size:
        return _project(rows, weight)
    passes = [_project(rows[..., at : at + size, :], weight) for at in range(0, count, size)]
    return np.concatenate(passes, axis=-2)


def _project(rows: Array, weight: Array) -> Array:
    products = rows[..., :, :, None] * weight[..., None, :, :]
    summed: Array = np.add.reduce(products, axis=-2)
    return summed


def tree_sum(parts: Sequence[Array]) -> Array:
    """Sum of a power-of-two number of equal arrays along a balanced binary tree.

    Raises:
        ValueError: When the number of parts is no power of two.
    """
    count = len(parts)
    if count == 0 or count & (count - 1):
        raise ValueError(f"{count} parts do not fill a binary tree; use a power of two")
    level = list(parts)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]
