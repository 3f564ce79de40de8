"""Which addresses a sandbox's network has: all follow from the number of its slot.

The range is 198.18.0.0/15, set aside for tests of networks by RFC 2544 and so routed nowhere: it
meets neither the networks of the machine nor those of its owner. Each sandbox on the machine has
one of 32 slots, a /20 of that range: one /24 for nodes, then one for the pods of each node.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

RANGE = IPv4Network("198.18.0.0/15")
SLOTS = 32
_HOST, _DNS, _FIRST_NODE = 1, 2, 10


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of one slot (0 to 31)."""

    slot: int

    @property
    def network(self) -> IPv4Network:
        """The whole slot."""
        return list(RANGE.subnets(new_prefix=20))[self.slot]

    @property
    def nodes(self) -> IPv4Network:
        """What the bridge joins: the machine, the nodes, the name server."""
        return self._part(0)

    @property
    def host(self) -> IPv4Address:
        """The machine's end: where the API server listens."""
        return self.nodes[_HOST]

    @property
    def dns(self) -> IPv4Address:
        """The name server's."""
        return self.nodes[_DNS]

    def node(self, index: int) -> IPv4Address:
        """A node's own."""
        return self.nodes[_FIRST_NODE + index]

    def pods(self, index: int) -> IPv4Network:
        """What the pods of one node get."""
        return self._part(1 + index)

    @property
    def host_link(self) -> str:
        """Name of the machine's end of the link; there is one a slot, so it claims the slot."""
        return f"swbox{self.slot}"

    def _part(self, number: int) -> IPv4Network:
        return list(self.network.subnets(new_prefix=24))[number]
