"""The token by which the pods of one incarnation know each other, as a Secret."""

from __future__ import annotations

import secrets

from shardwright.render.common import Manifest, labels
from shardwright.render.names import token_name
from shardwright.render.pods import GroupIdentity, group_labels
from shardwright.runner.contract import TOKEN_FILE

_BYTES = 32


def draw_token() -> str:
    """A new token: 256 random bits, as 64 hex digits."""
    return secrets.token_hex(_BYTES)


def token_secret(identity: GroupIdentity, leader_pod: str, leader_uid: str, token: str) -> Manifest:
    """The Secret that the incarnation's pods mount.

    The leader's pod owns it, so that it goes with its incarnation and nobody needs the right to
    delete Secrets. A pod that has mounted it keeps what it has read. Immutable: a token that
    changed would part the group.

    Args:
        identity: Which incarnation of which replica.
        leader_pod: Name of the pod of stage 0.
        leader_uid: Its UID.
        token: As `draw_token` makes it.
    """
    owner = identity.owner
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": token_name(owner.name, owner.uid, identity.replica, identity.incarnation),
            "namespace": identity.namespace,
            "labels": labels(group_labels(identity)),
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": leader_pod,
                    "uid": leader_uid,
                    "controller": False,
                    "blockOwnerDeletion": False,
                }
            ],
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": {TOKEN_FILE: token},
    }
