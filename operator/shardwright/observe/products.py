"""What a GPU product's name tells about NVLink inside a node, and names of the same product.

Neither GPU Feature Discovery nor the DRA driver publishes which GPUs of a node share NVLink, so the
product is all there is. It is a prior and no proof: boards lose a GPU off the fabric, bridges are
sold separately. An administrator's word (node label, settings) goes before it, and the runner looks
at the real links when it starts.
"""

from __future__ import annotations

import re

# Boards whose GPUs all sit on one NVLink or NVSwitch fabric. SXM modules come on HGX and DGX
# baseboards; HBM3 is how the H100 SXM names itself; NVLINK is CoreWeave's word for HGX.
_WHOLE_NODE = frozenset({"HGX", "DGX", "HBM3", "NVLINK", "H200", "B200", "B300", "GB200", "GB300"})
_SXM = re.compile(r"SXM[0-9]*")
# Google names the A100, H100 and V100 of its A2, A3 and V100 machines (all SXM) without saying so.
_WHOLE_NODE_NAMES = frozenset(
    {
        "nvidia-tesla-v100",
        "nvidia-tesla-a100",
        "nvidia-a100-80gb",
        "nvidia-h100-80gb",
        "nvidia-h100-mega-80gb",
    }
)
# PCIe cards with an NVL in their name are sold as bridged pairs.
_PAIRS = "NVL"
# Cards without any NVLink connector.
_NONE = frozenset({"L40S", "L40", "L4", "T4", "A10", "A10G", "A2", "A16", "P4"})
_TOKEN = re.compile(r"[^A-Za-z0-9]+")
_DROPPED = re.compile(r"[^A-Za-z0-9\-_. ]")
_SHARED_SUFFIX = "-SHARED"
_MIG_SUFFIX = re.compile(r"-MIG-[^-]+$")


def label_form(device_name: str) -> str:
    """A device's NVML name as GPU Feature Discovery labels it: `NVIDIA H100 PCIe` with dashes."""
    return "-".join(_DROPPED.sub("", device_name).split())


def base_product(product: str) -> str:
    """The product without what GPU Feature Discovery appends for shared and sliced GPUs."""
    return _MIG_SUFFIX.sub("", product.removesuffix(_SHARED_SUFFIX))


def nvlink_prior(product: str, gpus: int) -> int | None:
    """How many of a node's `gpus` share one NVLink domain, going by the product's name.

    The name is matched by its parts, so that `H200-NVL` is never taken for an `H200`.

    Returns:
        All GPUs of the node on HGX-like boards, 2 on cards sold as bridged pairs, 0 on cards that
        have no NVLink; None when the name does not tell (a PCIe card may have bridges or not).
    """
    base = base_product(product)
    tokens = {token.upper() for token in _TOKEN.split(base) if token}
    if _PAIRS in tokens:
        return min(2, gpus)
    if "PCIE" in tokens:
        # Sold without bridges; whether someone added them only the node knows.
        return 0 if "H100" in tokens else None
    if base.lower() in _WHOLE_NODE_NAMES or tokens & _WHOLE_NODE:
        return gpus
    if any(_SXM.fullmatch(token) for token in tokens):
        return gpus
    return 0 if tokens & _NONE else None
