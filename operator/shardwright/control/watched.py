"""What is watched and listed: which kinds, of which namespaces, by which labels.

Pods, nodes, volumes and ResourceSlices are watched in the whole cluster, since any pod can hold a
GPU. The other kinds are watched where the operator serves, and of those that only our own objects
matter of, only ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardwright.api.names import LABEL_MANAGED_BY, MANAGED_BY
from shardwright.apply.kinds import (
    BUDGET,
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NODE,
    POD,
    REVISION,
    SERVICE,
    SLICE,
    VOLUME,
)

OURS: Final = f"{LABEL_MANAGED_BY}={MANAGED_BY}"


@dataclass(frozen=True, slots=True)
class Watch:
    """One kind. `everywhere`: in the whole cluster, also when only some namespaces are served.

    `optional`: clusters without the kind are fine.
    """

    kind: str
    labels: str = ""
    everywhere: bool = False
    optional: bool = False


WATCHES: Final[tuple[Watch, ...]] = (
    Watch(NODE, everywhere=True),
    Watch(SLICE, everywhere=True, optional=True),
    Watch(VOLUME, everywhere=True),
    Watch(POD, everywhere=True),
    Watch(CLAIM),
    Watch(CONFIG_MAP, labels=OURS),
    Watch(REVISION, labels=OURS),
    Watch(JOB, labels=OURS),
    Watch(SERVICE, labels=OURS),
    Watch(BUDGET, labels=OURS),
    Watch(DEPLOYMENT),
)
