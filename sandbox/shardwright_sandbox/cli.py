"""`python -m shardwright_sandbox up|down|build|status|…`: a sandbox to try things in by hand."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.console import Console
from rich.table import Table

from shardwright.api.settings import Settings
from shardwright_sandbox.binaries import control_plane, node_programs
from shardwright_sandbox.cluster import Sandbox
from shardwright_sandbox.cluster import stop as stop_sandbox
from shardwright_sandbox.config import Layout, SandboxConfig
from shardwright_sandbox.crds import apply_crds
from shardwright_sandbox.errors import SandboxError
from shardwright_sandbox.fleet import MAX_REAL, load_fleet, real_pool
from shardwright_sandbox.namespaces import ensure_namespace
from shardwright_sandbox.nodes import make_nodes
from shardwright_sandbox.processes import Processes
from shardwright_sandbox.progress import Progress
from shardwright_sandbox.real.host import install, require
from shardwright_sandbox.real.images import base_images
from shardwright_sandbox.rest import rest_of
from shardwright_sandbox.storage import RWX, make_claim

OPERATOR_IMAGE = Path(__file__).resolve().parents[2] / "dist" / "image.tar"
# Not one of the demo's fleet: no replica is half played and half real.
REAL_PRODUCT = "NVIDIA-B200"
FLEETS = Path(__file__).resolve().parents[1] / "fleets"


class Switch(StrEnum):
    """What can be done to a real node."""

    STOP_KUBELET = "stop-kubelet"
    START_KUBELET = "start-kubelet"
    KILL_CONTAINERD = "kill-containerd"
    START_CONTAINERD = "start-containerd"
    CUT = "cut"
    MEND = "mend"
    FILL_VOLUME = "fill-volume"
    FREE_VOLUME = "free-volume"


app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
State = Annotated[Path, typer.Option("--state", help="folder of the sandbox")]
_STATE = Path(".sandbox")


@app.command()
def up(
    state: State = _STATE,
    nodes: Annotated[Path, typer.Option(help="fleet file")] = FLEETS / "demo.yaml",
    operator: Annotated[bool, typer.Option(help="run the operator as a process")] = True,  # noqa: FBT002 - a flag
    audit: Annotated[bool, typer.Option(help="write audit.log")] = False,  # noqa: FBT002 - a flag
    real: Annotated[
        int, typer.Option(min=0, max=MAX_REAL, help="how many real nodes besides (root, Linux)")
    ] = 0,
    node_grace: Annotated[int, typer.Option(help="seconds until a silent node is dead")] = 16,
) -> None:
    """Start a cluster with the nodes of a fleet file; what runs already is kept."""
    progress = Progress()
    fleet = load_fleet(nodes)
    if real:
        fleet = fleet.and_pool(real_pool(real, product=REAL_PRODUCT))
    config = SandboxConfig(audit=audit, node_grace_seconds=node_grace, real=fleet.real)
    sandbox = Sandbox.start(state, config, progress=progress)
    names = make_nodes(sandbox.api, fleet, exist_ok=True)
    progress.say(f"{len(names)} simulated nodes are there")
    if applied := apply_crds(sandbox.api):
        progress.say(f"applied {', '.join(applied)}")
    if sandbox.layout is not None and OPERATOR_IMAGE.exists():
        for real_node in sandbox.real_nodes().values():
            real_node.load_image(OPERATOR_IMAGE)
            progress.say(f"{real_node.name} has the operator's image, of `make image`")
    if operator and sandbox.layout is not None and not _runs(sandbox.layout, "operator"):
        # its Lease needs a namespace, which in a cluster the release of the chart has made
        ensure_namespace(sandbox.api, Settings().namespace)
        # nobody answers at the addresses of simulated pods
        settings = {"readLinks": bool(real)}
        file = sandbox.layout.config / "operator.yaml"
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
        sandbox.start_operator("--config", str(file))
        progress.say(f"the operator runs; its log is {sandbox.layout.logs / 'operator.log'}")
    elif operator and sandbox.layout is None:
        progress.say("the cluster is not a sandbox of this machine: no operator was started")
    sandbox.check_after(1.0 if sandbox.started_here else 0.0)
    progress.say(f"export KUBECONFIG={sandbox.kubeconfig}")


@app.command()
def build(
    real: Annotated[bool, typer.Option(help="and those of real nodes")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Build the programs of the control plane, which `up` does too; minutes the first time."""
    progress = Progress()
    control_plane(progress)
    if real:
        node_programs(progress)


@app.command()
def tools() -> None:
    """As root: with apt what real nodes need (containerd, runc, CNI plugins, iptables), and images.

    The images are the base of those that `up` gives to real nodes; about a minute the first time.
    """
    progress = Progress()
    install(progress)
    base_images(require(), progress)


@app.command()
def node(
    name: str,
    switch: Annotated[Switch, typer.Argument(help="what to break or mend")],
    state: State = _STATE,
) -> None:
    """Break a real node, or mend it."""
    nodes = Sandbox.attach(Layout(state.absolute()).kubeconfig).real_nodes()
    if name not in nodes:
        raise SandboxError(f"no real node {name}; there are: {', '.join(nodes) or 'none'}")
    getattr(nodes[name], switch.value.replace("-", "_"))()


@app.command()
def down(
    state: State = _STATE,
    keep_logs: Annotated[bool, typer.Option(help="leave the folder logs/")] = False,  # noqa: FBT002 - a flag
) -> None:
    """End every process of the sandbox and remove its files."""
    there = stop_sandbox(state, keep_logs=keep_logs)
    Progress().say(f"{state}: " + ("stopped, nothing is left" if there else "no sandbox here"))


@app.command()
def status(state: State = _STATE) -> None:
    """Show processes and nodes; exit 1 if something has ended, 3 if there is no sandbox."""
    layout = Layout(state.absolute())
    if not layout.processes.exists():
        print(f"no sandbox in {state}")
        raise typer.Exit(3)
    table = Table("process", "pid", "state", "log")
    entries = Processes(layout.processes).entries
    for entry in entries:
        alive = "running" if entry.alive() else "ended"
        table.add_row(entry.name, str(entry.pid), alive, entry.log)
    console = Console()
    console.print(table)
    if not all(entry.alive() for entry in entries):
        raise typer.Exit(1)
    rest = rest_of(Sandbox.attach(layout.kubeconfig).api)
    nodes = Table("node", "product", "GPUs", "zone")
    for node in rest.get("/api/v1/nodes")["items"]:
        labels = node["metadata"].get("labels", {})
        nodes.add_row(
            node["metadata"]["name"],
            labels.get("nvidia.com/gpu.product", "-"),
            node["status"]["allocatable"].get("nvidia.com/gpu", "-"),
            labels.get("topology.kubernetes.io/zone", "-"),
        )
    console.print(nodes)


@app.command()
def kubeconfig(state: State = _STATE) -> None:
    """Print the path of the kubeconfig, for `export KUBECONFIG=$(…)`."""
    path = Layout(state.absolute()).kubeconfig
    if not path.exists():
        raise SandboxError(f"no sandbox in {state}; start one with `up`")
    print(path)


@app.command()
def claim(
    name: str,
    state: State = _STATE,
    namespace: Annotated[str, typer.Option("--namespace", "-n")] = "default",
    mode: Annotated[str, typer.Option(help="ReadWriteMany or ReadWriteOnce")] = RWX,
) -> None:
    """Make a claim that is a folder on this machine, and print the folder."""
    sandbox = Sandbox.attach(Layout(state.absolute()).kubeconfig)
    print(make_claim(sandbox.api, sandbox.claims, namespace, name, mode=mode))


def _runs(layout: Layout, name: str) -> bool:
    entry = Processes(layout.processes).named(name)
    return entry is not None and entry.alive()


def main() -> None:
    """The command; our own errors are printed as they are, without a traceback."""
    try:
        app()
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
