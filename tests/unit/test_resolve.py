"""What a model's moving name becomes once it was resolved."""

from __future__ import annotations

import pytest

from shardwright.plan.fetched import pinned_uri

COMMIT = "71d952fd45fbb5faa8ead51e23d8e671a5a6db42"
DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("uri", "commit", "pinned"),
    [
        ("hf://org/name", COMMIT, f"hf://org/name@{COMMIT}"),
        ("hf://org/name@main", COMMIT, f"hf://org/name@{COMMIT}"),
        ("hf://org/name@main", "", "hf://org/name@main"),
        ("oci://r.example.com:5000/a/b:v1", DIGEST, f"oci://r.example.com:5000/a/b@{DIGEST}"),
        ("oci://r.example.com/a/b", DIGEST, f"oci://r.example.com/a/b@{DIGEST}"),
        (f"oci://r.example.com/a/b@{DIGEST}", DIGEST, f"oci://r.example.com/a/b@{DIGEST}"),
        ("oci://r.example.com/a/b:v1", "", "oci://r.example.com/a/b:v1"),
        ("s3://bucket/a", COMMIT, "s3://bucket/a"),
        ("pvc://claim/a", "", "pvc://claim/a"),
    ],
)
def test_a_moving_name_is_replaced_by_what_it_meant(uri: str, commit: str, pinned: str) -> None:
    assert pinned_uri(uri, commit) == pinned
    assert pinned_uri(pinned, commit) == pinned
