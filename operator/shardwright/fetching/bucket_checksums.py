"""What an S3 object's checksum is: it depends on how the object was uploaded."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from shardwright.fetching.digests import SIZES
from shardwright.fetching.remote import Digest

_CHECKSUM_HEADER = "x-amz-checksum-"
# Strongest first. CRC64NVME is what S3 computes for every upload since the end of 2024.
_CHECKSUMS = ("sha256", "sha1", "crc64nvme", "crc32c", "crc32")
# S3 gives an object no ETag that is an MD5 when it encrypts with these.
_KEYED = frozenset({"aws:kms", "aws:kms:dsse"})


def checksum_of(headers: Mapping[str, str], etag: str, size: int, part_bytes: int) -> Digest | None:
    """The strongest checksum of an object that can be computed from its bytes.

    S3 keeps a checksum of the whole object (`FULL_OBJECT`), or one of the checksums of the upload's
    parts (`COMPOSITE`). Without either the ETag is an MD5 in the same two ways, unless the object
    is encrypted under a key of its own (docs.aws.amazon.com/AmazonS3/latest/userguide,
    "Checking object integrity").

    Args:
        headers: Of a HEAD request with `x-amz-checksum-mode: ENABLED`.
        etag: Without quotes.
        size: The object's bytes.
        part_bytes: Size of the first part; 0 if it is not in parts or not known.

    Returns:
        None when there is none: then only the size is checked.
    """
    composite = is_composite(headers) or ("-" in etag and not _is_full(headers))
    for algorithm in _CHECKSUMS:
        text = headers.get(_CHECKSUM_HEADER + algorithm, "")
        value, _, count = text.partition("-")
        digest = _hexadecimal(value, algorithm)
        if not digest:
            continue
        if not composite:
            return Digest(algorithm, digest)
        parts = count or etag.partition("-")[2]
        if _are_equal_parts(parts, size, part_bytes):
            return Digest(algorithm, digest, part_bytes)
    value, _, count = etag.partition("-")
    keyed = headers.get("x-amz-server-side-encryption", "") in _KEYED or bool(
        headers.get("x-amz-server-side-encryption-customer-algorithm", "")
    )
    if keyed or len(value) != 2 * SIZES["md5"] or set(value) - set("0123456789abcdef"):
        return None
    if not count:
        return Digest("md5", value)
    return Digest("md5", value, part_bytes) if _are_equal_parts(count, size, part_bytes) else None


def is_composite(headers: Mapping[str, str]) -> bool:
    """Whether the answer says that its checksum is one of parts' checksums."""
    return headers.get("x-amz-checksum-type", "") == "COMPOSITE"


def _is_full(headers: Mapping[str, str]) -> bool:
    return headers.get("x-amz-checksum-type", "") == "FULL_OBJECT"


def _are_equal_parts(count: str, size: int, part_bytes: int) -> bool:
    """Whether parts of the first one's size make the object: uploads may also vary them."""
    return part_bytes > 0 and count.isdigit() and -(-size // part_bytes) == int(count)


def _hexadecimal(value: str, algorithm: str) -> str:
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return raw.hex() if len(raw) == SIZES[algorithm] else ""
