"""The ConfigMap that tells a deployment's leaders which adapters to have loaded.

Two revisions serve at the same time while a deployment moves from one to the other, and one cannot
always take the adapters of the other: there is a table for each, and a leader mounts its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.api import names
from shardwright.render.common import Manifest, Owner, labels
from shardwright.render.names import adapters_name
from shardwright.runner.contract import ADAPTERS_FILE, AdapterTable, encode


def table_key(revision: str) -> str:
    """Where the table of a revision stands in the ConfigMap."""
    return f"{revision}.json"


def adapters_config_map(
    namespace: str, owner: Owner, tables: Mapping[str, AdapterTable], first: str
) -> Manifest:
    """The tables of adapters by revision; they go with their deployment.

    The table of `first`, which serves, also stands under ADAPTERS_FILE, for people and for leaders
    that an operator made which knew one table only.
    """
    data = {table_key(revision): encode(table) for revision, table in tables.items()}
    if first in tables:
        data[ADAPTERS_FILE] = encode(tables[first])
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": adapters_name(owner.name, owner.uid),
            "namespace": namespace,
            "labels": labels({names.LABEL_DEPLOYMENT: owner.name, names.LABEL_ADAPTERS: "true"}),
            "ownerReferences": [owner.reference(controller=True)],
        },
        "data": data,
    }
