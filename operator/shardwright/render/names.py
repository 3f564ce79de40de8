"""Names of the objects that the operator creates: deterministic, and never too long.

A name is the single flight: two operators, or one before and after a crash, arrive at the same one.
Pods of a deleted and recreated LLMDeployment of the same name must not be mistaken for each other,
hence some digits of a hash of the owner's UID.
"""

from __future__ import annotations

import hashlib

# A DNS label: what a pod's hostname, a Service's name and a label's value may hold.
LIMIT = 63


def uid_hash(uid: str, digits: int) -> str:
    """The first hex digits of SHA-256 over a UID."""
    return hashlib.sha256(uid.encode()).hexdigest()[:digits]


def bounded(stem: str, suffix: str) -> str:
    """`stem-suffix` as a DNS label: the stem is cut, the suffix, which keeps names apart, is not.

    Raises:
        ValueError: When the suffix leaves no room for a stem.
    """
    room = LIMIT - len(suffix) - 1
    cut = stem[: max(room, 0)].rstrip("-.")
    if not cut:
        raise ValueError(f"suffix {suffix!r} leaves no room for {stem!r} in {LIMIT} characters")
    return f"{cut}-{suffix}"


def pod_name(deployment: str, uid: str, replica: int, incarnation: int, stage: int) -> str:
    """Name of one stage's pod, which is its hostname too."""
    return bounded(deployment, f"{uid_hash(uid, 4)}-{replica}-{incarnation}-{stage}")


def ranks_service_name(deployment: str, uid: str) -> str:
    """Name of the headless Service under which ranks find each other."""
    return bounded(deployment, f"{uid_hash(uid, 4)}-ranks")


def token_name(deployment: str, uid: str, replica: int, incarnation: int) -> str:
    """Name of the Secret with an incarnation's token."""
    return bounded(deployment, f"{uid_hash(uid, 4)}-{replica}-{incarnation}-token")


def adapters_name(deployment: str, uid: str) -> str:
    """Name of the ConfigMap that tells a deployment's leaders which adapters to load."""
    return bounded(deployment, f"{uid_hash(uid, 4)}-adapters")


def rank_address(pod: str, service: str, namespace: str) -> str:
    """DNS name of a pod under its headless Service, whatever the cluster's own domain is."""
    return f"{pod}.{service}.{namespace}.svc"


def job_name(step: str, key: str, attempt: int, claim_uid: str) -> str:
    """Name of one attempt at a step."""
    return f"sw-{step}-{key}-{uid_hash(claim_uid, 8)}-{attempt}"


def record_name(claim_uid: str, key: str) -> str:
    """Name of the ConfigMap that says what is known of an artifact on a claim."""
    return f"swr-{uid_hash(claim_uid, 8)}-{key}"


def runner_name(archive: bytes) -> str:
    """Name of the ConfigMap that holds this runner and no other."""
    return f"shardwright-runner-{hashlib.sha256(archive).hexdigest()[:10]}"
