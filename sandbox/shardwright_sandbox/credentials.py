"""Keys, tokens and kubeconfigs of a sandbox. All of them die with it."""

import base64
import csv
import secrets
from collections.abc import Mapping
from pathlib import Path

import yaml

from shardwright_sandbox.config import CONTEXT

_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# ECPrivateKey of RFC 5915 on P-256 without the optional public key: everything
# but the 32 bytes of the scalar is constant, so no crypto library is needed.
_EC_KEY_HEAD = bytes.fromhex("30310201010420")
_EC_KEY_TAIL = bytes.fromhex("a00a06082a8648ce3d030107")


def write_signing_key(path: Path) -> None:
    """Write a fresh P-256 key that signs service account tokens."""
    scalar = (secrets.randbelow(_P256_ORDER - 1) + 1).to_bytes(32, "big")
    der = base64.b64encode(_EC_KEY_HEAD + scalar + _EC_KEY_TAIL).decode()
    lines = "\n".join(der[start : start + 64] for start in range(0, len(der), 64))
    _write_private(path, f"-----BEGIN EC PRIVATE KEY-----\n{lines}\n-----END EC PRIVATE KEY-----\n")


def write_tokens(path: Path, users: Mapping[str, tuple[str, ...]]) -> None:
    """Write the API server's token file with a fresh token for each user."""
    _write_private(path, "")
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        for name, groups in users.items():
            writer.writerow([secrets.token_hex(16), name, name, ",".join(groups)])


def read_token(path: Path, user: str) -> str | None:
    """The token of a user; None if there is no such user."""
    with path.open(newline="") as handle:
        return next((row[0] for row in csv.reader(handle) if row[1] == user), None)


def write_kubeconfig(path: Path, server: str, authority: Path, token: str) -> Path:
    """Write a kubeconfig with the one context that the guard knows."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CONTEXT,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(authority.read_bytes()).decode(),
                },
            }
        ],
        "users": [{"name": CONTEXT, "user": {"token": token}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": CONTEXT}}],
        "current-context": CONTEXT,
    }
    _write_private(path, yaml.safe_dump(content, sort_keys=False))
    return path


def _write_private(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(text)
