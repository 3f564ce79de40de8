"""The fleet a plan may use: from the nodes of a cluster, or from a file that a person wrote.

Equal nodes become one group, so that thousands of them cost no more than a handful. What is not
known is assumed on the careful side and says so: no NVLink, a slow network.
"""

from __future__ import annotations

from shardwright.sizing.fleet_file import FleetError, fleet_of_yaml
from shardwright.sizing.fleet_nodes import fabric_of, fleet_of_nodes, memory_of

__all__ = ["FleetError", "fabric_of", "fleet_of_nodes", "fleet_of_yaml", "memory_of"]
