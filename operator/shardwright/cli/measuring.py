"""The part of `shardwright benchmark` that talks to a cluster: one leader, one Job, its results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shardwright.api import names
from shardwright.api.serving import EngineSpec, Runtime
from shardwright.api.speculative import SpeculationMethod
from shardwright.apply.client import Cluster
from shardwright.apply.errors import ClusterError, NotFound
from shardwright.benchmark.job import (
    PULL_SECONDS,
    JobError,
    Sweep,
    benchmark_job,
    longest,
    points_of,
    served_by,
    tool_for,
)
from shardwright.benchmark.results import Run
from shardwright.benchmark.waiting import over, progress, waits_for, why_not_ready
from shardwright.observe.projections import revision_view
from shardwright.plan import revisions
from shardwright.resolved import Resolved
from shardwright.runner.contract import ServeRequest

POLL_SECONDS = 2.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants measured.

    Attributes:
        namespace, name: The deployment.
        lengths: Tokens of each prompt and of each answer.
        at_once: Requests at once, one point each.
        seconds: All points together may take so long; 0 goes by the points.
        tool: `own` or `aiperf`.
        image: Of aiperf.
    """

    namespace: str
    name: str
    lengths: tuple[int, int]
    at_once: tuple[int, ...]
    seconds: int = 0
    tool: str = "own"
    image: str = ""


async def measured(cluster: Cluster, asked: Asked, say: Say) -> Run:
    """Measure a replica.

    All that the run says of what was measured comes from the revision of the replica's own pod: the
    spec may have been edited since.

    Raises:
        JobError: It cannot be measured.
        ClusterError: The API server refuses, or does not answer.
    """
    leader = await _leader(cluster, asked.namespace, asked.name, say)
    served = served_by(leader)
    resolved = await _revision(cluster, asked.namespace, served.revision)
    sweep = sweep_of(resolved, asked)
    started = datetime.now(UTC)
    job = benchmark_job(leader, f"{asked.name}-benchmark-{started:%y%m%d%H%M%S}", sweep)
    made = await cluster.create("Job", job)
    name, pod = str(job["metadata"]["name"]), leader["metadata"]
    say(f"Job {asked.namespace}/{name} measures pod {pod['name']}, at most {sweep.seconds} s")
    try:
        message = await _ended(cluster, asked.namespace, name, sweep.seconds + PULL_SECONDS, say)
    except asyncio.CancelledError:
        uid = str(made["metadata"]["uid"])
        await asyncio.shield(cluster.delete("Job", asked.namespace, name, uid=uid))
        raise
    points, error = points_of(message)
    run = run_of(resolved, served, asked)
    remarks = [f"not all was measured: {error}"] if error else []
    remarks += await _changed(cluster, asked, pod, served.revision)
    image = sweep.image or leader["spec"]["containers"][0]["image"]
    return replace(
        run,
        points=points,
        date=started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        tool=f"{sweep.tool.contract} of {image}",
        remarks=tuple(remarks),
    )


def sweep_of(resolved: Resolved, asked: Asked) -> Sweep:
    """What is to be measured of a revision.

    Raises:
        JobError: Its runtime cannot be measured so, or its limits are below the lengths.
    """
    spec = resolved.spec
    _fit(spec.engine, *asked.lengths)
    return Sweep(
        tool=tool_for(spec.engine.runtime.value, asked.tool, asked.image),
        image=asked.image,
        input_len=asked.lengths[0],
        output_len=asked.lengths[1],
        at_once=asked.at_once,
        seconds=asked.seconds or longest(asked.at_once, asked.lengths[1]),
        draft_len=_draft_len(resolved),
        trust_code=spec.model.trust_remote_code,
    )


def _fit(engine: EngineSpec, given: int, answered: int) -> None:
    """Refuse lengths that the server would refuse of each request.

    Raises:
        JobError: They are beyond the engine's limits.
    """
    limits = engine.limits
    if given + answered > limits.max_seq_len:
        raise JobError(
            f"--input-len {given} and --output-len {answered} are {given + answered} tokens, and "
            f"engine.limits.maxSeqLen of what serves is {limits.max_seq_len}: ask for shorter ones"
        )
    # The others take any prompt that leaves room for a token of the answer.
    if engine.runtime is Runtime.TENSORRT_LLM and given > limits.max_input_len:
        raise JobError(
            f"--input-len {given} exceeds engine.limits.maxInputLen {limits.max_input_len} of what "
            "serves: ask for a shorter one"
        )


def run_of(resolved: Resolved, served: ServeRequest, asked: Asked) -> Run:
    """A run of this revision, without points yet."""
    spec = resolved.spec
    return Run(
        name=asked.name,
        revision=served.revision,
        date="",
        tool="",
        input_len=asked.lengths[0],
        output_len=asked.lengths[1],
        runtime=spec.engine.runtime.value,
        weights=spec.quantization.weights.value,
        product=served.product,
        tensor=served.tensor,
        pipeline=served.pipeline,
        points=(),
        max_batch_size=spec.engine.limits.max_batch_size,
        draft_len=_draft_len(resolved),
        draft_cost=_draft_cost(resolved),
        attention_groups=spec.parallelism.attention_groups,
    )


def _draft_len(resolved: Resolved) -> int:
    asked = resolved.spec.speculative
    return 0 if asked is None else asked.max_draft_len


def _draft_cost(resolved: Resolved) -> float | None:
    """What a drafted token costs, as a share of a pass of the model: by weights, as planned.

    Words looked up in the text cost nothing. Heads draft all their tokens in the one pass.
    """
    asked = resolved.spec.speculative
    if asked is None:
        return None
    if asked.method in (SpeculationMethod.NGRAM, SpeculationMethod.MEDUSA):
        return 0.0
    stages = resolved.room.stages if resolved.room is not None else ()
    draft, model = sum(one.draft for one in stages), sum(one.weights for one in stages)
    return round(draft / model, 4) if draft and model else None


async def _leader(cluster: Cluster, namespace: str, name: str, say: Say) -> dict[str, Any]:
    """A leader that serves and is ready.

    Raises:
        JobError: There is none.
        NotFound: There is no such deployment.
    """
    await cluster.get(names.KIND, namespace, name)
    selector = f"{names.LABEL_DEPLOYMENT}={name},{names.LABEL_SERVING}=true"
    found = (await cluster.list("Pod", namespace, labels=selector)).items
    ready = [pod for pod in found if _is_ready(pod)]
    if not ready:
        why = "; ".join(f"pod {pod['metadata']['name']}: {why_not_ready(pod)}" for pod in found)
        raise JobError(
            f"no replica of {namespace}/{name} serves{': ' + why if why else ''}; see shardwright "
            f"status {name} -n {namespace}"
        )
    if len(ready) < len(found):
        say(f"{len(found) - len(ready)} of {len(found)} replicas are not ready")
    first: dict[str, Any] = min(ready, key=lambda pod: str(pod["metadata"]["name"]))
    return first


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return not pod["metadata"].get("deletionTimestamp") and any(
        one["type"] == "Ready" and one["status"] == "True" for one in conditions
    )


async def _revision(cluster: Cluster, namespace: str, name: str) -> Resolved:
    """What a revision was resolved to.

    Raises:
        JobError: Its data are of another version.
        ClusterError: It is gone, or may not be read.
    """
    view = revision_view(await cluster.get("ControllerRevision", namespace, name))
    try:
        return revisions.load(view.data)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"ControllerRevision {namespace}/{name} cannot be read: {error}") from error


async def _changed(
    cluster: Cluster, asked: Asked, pod: Mapping[str, Any], revision: str
) -> list[str]:
    """What happened to the replica while it was measured."""
    told = []
    try:
        now = await cluster.get("Pod", asked.namespace, str(pod["name"]))
    except NotFound:
        now = {"metadata": {}}
    meta = now["metadata"]
    if meta.get("uid") != pod["uid"] or meta.get("deletionTimestamp"):
        told.append(f"pod {pod['name']} went away while it was measured: doubt the last point")
    elif not _is_ready(now):
        told.append(f"pod {pod['name']} is not ready any more: {why_not_ready(now)}")
    body = await cluster.get(names.KIND, asked.namespace, asked.name)
    serves = body.get("status", {}).get("engine", {}).get("serving", {}).get("revision", "")
    if serves and serves != revision:
        told.append(f"these figures are of revision {revision}; by now {serves} serves")
    return told


async def _ended(cluster: Cluster, namespace: str, job: str, seconds: float, say: Say) -> str:
    """The termination message of the Job's pod; what it waits for and measures is told meanwhile.

    Raises:
        JobError: It has not ended in time, or was taken away.
    """
    ends = time.monotonic() + seconds
    labels = f"batch.kubernetes.io/job-name={job}"
    teller = _Teller(cluster, namespace, say)
    seen = False
    while time.monotonic() < ends:
        pods = (await cluster.list("Pod", namespace, labels=labels)).items
        pod = pods[0] if pods else None
        if pod is None and seen:
            raise JobError(f"the pod of Job {namespace}/{job} was taken away")
        seen = pod is not None
        ended, message = over(pod)
        await teller.tell(pod)
        if ended:
            return message
        await asyncio.sleep(POLL_SECONDS)
    raise JobError(f"Job {namespace}/{job} has not ended in {seconds:.0f} s")


class _Teller:
    """Says what is new of a benchmark's pod."""

    def __init__(self, cluster: Cluster, namespace: str, say: Say) -> None:
        self._cluster, self._namespace, self._say = cluster, namespace, say
        self._waits = ""
        self._lines = 0
        self._silent = False

    async def tell(self, pod: Mapping[str, Any] | None) -> None:
        """Say what it waits for, or what its log has since the last time."""
        waits = waits_for(pod)
        if waits and waits != self._waits:
            self._say(waits)
        self._waits = waits
        if waits or pod is None:
            return
        try:
            lines = progress(await self._cluster.log(self._namespace, pod["metadata"]["name"]))
        except ClusterError as error:
            # A node may be slow to answer for a moment; who may not read it is told so once.
            if not self._silent:
                self._say(f"its progress is not shown: {error}")
            self._silent = True
            return
        self._silent = False
        for line in lines[self._lines :]:
            self._say(line)
        self._lines = max(self._lines, len(lines))
