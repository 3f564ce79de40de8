"""Reading and writing the safetensors format, of which the images hold no library.

Eight bytes of header length (little endian), a JSON header with dtype, shape and byte range of each
tensor, then the data. Source: the format's description in huggingface/safetensors, README. BF16 has
no numpy type: its bits are the upper half of a float32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]

_LENGTH = struct.Struct("<Q")
_HEADER_LIMIT = 100_000_000  # the format's own limit
_SIZES = {"BF16": 2, "F16": 2, "F32": 4}


class TensorFileError(ValueError):
    """The bytes are no whole safetensors file."""


def encode(tensors: Mapping[str, NDArray[np.float32]], dtype: str) -> bytes:
    """A safetensors file of float32 arrays, stored as `dtype` (BF16, F16 or F32).

    Raises:
        TensorFileError: When a value would change, or the dtype is none of the three.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks: list[bytes] = []
    offset = 0
    for name in sorted(tensors):
        data = _pack(name, tensors[name], dtype)
        end = offset + len(data)
        header[name] = {
            "dtype": dtype,
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, end],
        }
        chunks.append(data)
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((_LENGTH.pack(len(text)), text, *chunks))


def decode(data: bytes, source: str) -> Tensors:
    """The tensors of a safetensors file as float32; `source` names the file in errors.

    Raises:
        TensorFileError: When the file is cut, has bytes too many, or a header that does not fit.
    """
    if len(data) < _LENGTH.size:
        raise TensorFileError(f"{source}: HeaderTooSmall, {len(data)} bytes")
    (length,) = _LENGTH.unpack_from(data)
    if length > _HEADER_LIMIT or _LENGTH.size + length > len(data):
        raise TensorFileError(f"{source}: InvalidHeaderLength, {length} of {len(data)} bytes")
    try:
        header = json.loads(data[_LENGTH.size : _LENGTH.size + length])
        header.pop("__metadata__", None)
        entries = {
            str(name): (entry["dtype"], tuple(entry["shape"]), tuple(entry["data_offsets"]))
            for name, entry in header.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TensorFileError(f"{source}: InvalidHeaderDeserialization, {error!r}") from error
    body = memoryview(data)[_LENGTH.size + length :]
    expected = max((end for _, _, (_, end) in entries.values()), default=0)
    if expected != len(body):
        raise TensorFileError(
            f"{source}: MetadataIncompleteBuffer, {len(body)} of {expected} bytes of tensors"
        )
    return {
        name: _unpack(f"{source}: {name}", dtype, shape, body[start:end])
        for name, (dtype, shape, (start, end)) in entries.items()
    }


def read(path: Path) -> Tensors:
    """The tensors of the file at `path`."""
    return decode(path.read_bytes(), path.name)


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values rounded to the nearest BF16 number, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    result: NDArray[np.float32] = rounded.astype(np.uint32).view(np.float32)
    return result


def _pack(name: str, values: NDArray[np.float32], dtype: str) -> bytes:
    exact = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == "F32":
        return exact.tobytes()
    if dtype == "F16":
        with np.errstate(over="ignore"):
            half = exact.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), exact):
            raise TensorFileError(f"{name}: values do not fit F16 without rounding; use F32")
        return half.tobytes()
    if dtype == "BF16":
        if not np.array_equal(bfloat16(exact), exact):
            raise TensorFileError(f"{name}: values do not fit BF16 without rounding; use F32")
        return (exact.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    raise TensorFileError(f"{name}: dtype {dtype!r} is none of {', '.join(_SIZES)}")


def _unpack(name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> NDArray[np.float32]:
    size = _SIZES.get(dtype)
    if size is None:
        raise TensorFileError(f"{name}: dtype {dtype!r} is none of {', '.join(_SIZES)}")
    if len(data) != size * int(np.prod(shape, dtype=np.int64)):
        raise TensorFileError(f"{name}: {len(data)} bytes do not fill {dtype} of shape {shape}")
    if dtype == "BF16":
        raw = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        values = raw.view(np.float32)
    else:
        values = np.frombuffer(data, np.float16 if dtype == "F16" else np.float32)
    return values.astype(np.float32).reshape(shape)
