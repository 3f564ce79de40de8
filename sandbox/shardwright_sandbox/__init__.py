"""A Kubernetes cluster on this machine, for tests and the demo.

The control plane is real (etcd, kube-apiserver, kube-controller-manager and
kube-scheduler); nodes are objects that KWOK keeps alive, and what would run in
our pods is played by `shardwright_sandbox.player`. `sandbox/README.md` says
what that can show and what it cannot.
"""

from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.config import SandboxConfig
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.fleet import Fleet, load_fleet

__all__ = ["Fleet", "Sandbox", "SandboxConfig", "SandboxError", "load_fleet"]
