"""The ConfigMap that tells a deployment's leaders which adapters to have loaded."""

from __future__ import annotations

from shardwright.api import names
from shardwright.render.common import Manifest, Owner, labels
from shardwright.render.names import adapters_name
from shardwright.runner.contract import ADAPTERS_FILE, AdapterTable, encode


def adapters_config_map(namespace: str, owner: Owner, table: AdapterTable) -> Manifest:
    """The table of adapters; it goes with its deployment."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": adapters_name(owner.name, owner.uid),
            "namespace": namespace,
            "labels": labels({names.LABEL_DEPLOYMENT: owner.name, names.LABEL_ADAPTERS: "true"}),
            "ownerReferences": [owner.reference(controller=True)],
        },
        "data": {ADAPTERS_FILE: encode(table)},
    }
