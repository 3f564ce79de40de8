"""Nodes of a live cluster for planning commands; apart, since only these need a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kubernetes.aio.client import ApiClient
from kubernetes.aio.config import ConfigException

from shardwright.api.settings import Settings
from shardwright.apply.client import Cluster, load_configuration
from shardwright.cli.reading import BadInputError, Nodes, checked, nodes_of_views
from shardwright.observe.nodes import node_view
from shardwright.observe.projections import pod_view


async def nodes_of_cluster(kubeconfig: str, context: str) -> Nodes:
    """Nodes of a cluster, less what its pods hold; only reads.

    Raises:
        BadInputError: The kubeconfig cannot be read or has no such context, or no node has GPUs.
        ClusterError: The API server refuses, or does not answer.
    """
    async with connect_context(kubeconfig, context) as cluster:
        nodes = [node_view(body, Settings()) for body in (await cluster.list("Node")).items]
        pods = [pod_view(body) for body in (await cluster.list("Pod")).items]
    return checked(nodes_of_views(nodes, pods, f"context {context}"))


@asynccontextmanager
async def connect_context(kubeconfig: str, context: str) -> AsyncIterator[Cluster]:
    """A cluster by the name of its context.

    Raises:
        BadInputError: The kubeconfig cannot be read, or has no such context.
    """
    try:
        configuration = await load_configuration(kubeconfig, context=context)
    except (ConfigException, OSError) as error:
        raise BadInputError(f"--context {context}: {error}") from error
    async with ApiClient(configuration) as api:
        yield Cluster(api)
