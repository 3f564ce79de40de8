"""Causes of not starting: engines that do not fit, memory, ranks that cannot meet, no GPUs."""

from __future__ import annotations

import re

from shardwright.diagnose.finding import Finding, Fit
from shardwright.diagnose.observed import Observed, Symptom

# What runtimes and TensorRT write; the issues in which people met them stand beside each.
_WORLD = re.compile(
    # NVIDIA/TensorRT-LLM#2058
    r"world ?size|mpi ?size|tp_size \* pp_size|number of ranks",
    re.IGNORECASE,
)
_COMPUTE = re.compile(
    # run-llama/llama_index#12318, NVIDIA/TensorRT#2176
    r"expecting compute|incompatible device|no kernel image|built for .*compute",
    re.IGNORECASE,
)
_VERSION = re.compile(
    # triton-inference-server/tensorrtllm_backend#531 and #190, NVIDIA/TensorRT#4479
    r"version tag|serialized.*version|version.*does not match|engine version",
    re.IGNORECASE,
)
_INCOMPLETE = re.compile(
    r"no such file.*rank\d+|rank\d+\.engine|unexpected end of file|truncated",
    re.IGNORECASE,
)
# NVIDIA/TensorRT-LLM#1038 and #1838: said of whatever is wrong with the files
_UNREADABLE = re.compile(r"deserializ", re.IGNORECASE)
_MEMORY = re.compile(
    # NVIDIA/TensorRT-LLM#5872
    r"out of memory|insufficient gpu memory|OutOfMemoryError|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
_PEER = re.compile(
    # NVIDIA/TensorRT-LLM#16899 and #9680
    r"cudaIpcOpenMemHandle|NCCL.*(timeout|timed out|unhandled)|ncclSystemError",
    re.IGNORECASE,
)
_REBUILD = (
    "Let it be built again for what it runs on: the operator keys engines by shape, GPU product "
    "and version, so it builds another when the spec says what is meant."
)


def engine_built_for_other_shape(observed: Observed) -> Finding | None:
    """An engine holds one file a rank; another TP or PP cannot load it."""
    facts = observed.facts
    cause = "The engine was built for another tensor × pipeline split than the one that loads it."
    if not observed.shows(Symptom.ENGINE_FAILS_TO_LOAD):
        return None
    built = (facts.built_for_tensor, facts.built_for_pipeline)
    asked = (facts.tensor, facts.pipeline)
    if None not in built and None not in asked:
        evidence = (
            f"built for TP {built[0]} × PP {built[1]}, loaded as TP {asked[0]} × PP {asked[1]}"
        )
        if built == asked:
            return Finding("EngineShape", Fit.RULED_OUT, cause, (evidence,))
        return Finding("EngineShape", Fit.SHOWN, cause, (evidence,), _shape_remedies(observed))
    if quoted := _quoted(_WORLD, observed) or _reason(observed, "WorldMismatch"):
        return Finding("EngineShape", Fit.SHOWN, cause, (quoted,), _shape_remedies(observed))
    missing = (
        "facts.builtForTensor and builtForPipeline are not known; the engine's config.json has "
    )
    return Finding(
        "EngineShape", Fit.POSSIBLE, cause, (f"{missing}them",), _shape_remedies(observed)
    )


def _shape_remedies(observed: Observed) -> tuple[str, ...]:
    facts = observed.facts
    remedies = [_REBUILD]
    if facts.built_for_tensor and facts.built_for_pipeline:
        remedies.append(
            f"Or load it as it was built: tensor {facts.built_for_tensor}, pipeline "
            f"{facts.built_for_pipeline}."
        )
    return tuple(remedies)


def engine_built_for_other_gpu(observed: Observed) -> Finding | None:
    """Compiled kernels belong to one GPU; the same family is not the same product."""
    facts = observed.facts
    if not observed.shows(Symptom.ENGINE_FAILS_TO_LOAD):
        return None
    cause = "The engine was built on another GPU than the one that loads it."
    remedies = (
        _REBUILD,
        "Or place it on the GPU it was built for: gpu.product.",
    )
    if facts.built_for_product and facts.gpu_product:
        evidence = f"built for {facts.built_for_product}, loaded on {facts.gpu_product}"
        if facts.built_for_product == facts.gpu_product:
            return Finding("EngineGPU", Fit.RULED_OUT, cause, (evidence,))
        return Finding("EngineGPU", Fit.SHOWN, cause, (evidence,), remedies)
    if quoted := _quoted(_COMPUTE, observed) or _reason(observed, "GPUMismatch"):
        return Finding("EngineGPU", Fit.SHOWN, cause, (quoted,), remedies)
    evidence = "facts.builtForProduct or gpuProduct is not known; the engine's manifest has it"
    return Finding("EngineGPU", Fit.POSSIBLE, cause, (evidence,), remedies)


def engine_built_by_other_version(observed: Observed) -> Finding | None:
    """A serialized engine is read by the version that wrote it and by no other."""
    facts = observed.facts
    if not observed.shows(Symptom.ENGINE_FAILS_TO_LOAD):
        return None
    cause = "The engine was built by another version of the runtime than the one that loads it."
    remedies = (
        _REBUILD,
        (
            "Build and serve with the same image, by digest: an image may bring another TensorRT "
            "under the same runtime version."
        ),
    )
    source = "NVIDIA/TensorRT#4479: 10.10 engines are refused by 10.11"
    if facts.built_for_version and facts.version:
        evidence = f"built by {facts.built_for_version}, loaded by {facts.version}"
        if facts.built_for_version != facts.version:
            return Finding("EngineVersion", Fit.SHOWN, cause, (evidence,), remedies, source)
        if not _VERSION.search(facts.message):
            return Finding("EngineVersion", Fit.RULED_OUT, cause, (evidence,), (), source)
    if quoted := _quoted(_VERSION, observed):
        return Finding("EngineVersion", Fit.SHOWN, cause, (quoted,), remedies, source)
    evidence = "facts.builtForVersion or version is not known"
    return Finding("EngineVersion", Fit.POSSIBLE, cause, (evidence,), remedies, source)


def engine_incomplete(observed: Observed) -> Finding | None:
    """A file of a rank is missing or cut short: a build or a copy ended early."""
    if not observed.shows(Symptom.ENGINE_FAILS_TO_LOAD):
        return None
    shown = (
        _quoted(_INCOMPLETE, observed)
        or _reason(observed, "ManifestMismatch")
        or _reason(observed, "ManifestMissing")
    )
    explained = _quoted(_VERSION, observed) or _quoted(_COMPUTE, observed)
    unreadable = "" if explained else _quoted(_UNREADABLE, observed)
    if not (shown or unreadable):
        return None
    return Finding(
        "EngineIncomplete",
        Fit.SHOWN if shown else Fit.POSSIBLE,
        "Files of the engine are missing, cut short or changed: a build or a copy ended early.",
        (shown or unreadable,),
        (
            (
                "The operator moves such files to the trash and builds them again, twice; if it "
                "goes on, look at the claim's storage."
            ),
        ),
        "NVIDIA/TensorRT-LLM#1038, #1838",
    )


def out_of_memory(observed: Observed) -> Finding | None:
    """Weights, buffers and KV cache do not fit what the driver gives."""
    told = _quoted(_MEMORY, observed) or _reason(observed, "OutOfMemory")
    if not (observed.shows(Symptom.OUT_OF_MEMORY) or told):
        return None
    if _reason(observed, "OOMKilled"):
        return None  # host memory, the next rule
    return Finding(
        "OutOfGPUMemory",
        Fit.SHOWN if told else Fit.POSSIBLE,
        "GPU memory does not hold weights, buffers and KV cache together.",
        (told or "no message says so: facts.message is empty, or names no allocation",),
        (
            "`shardwright plan FILE` shows what each part takes, and which shape fits.",
            "Lower engine.limits.maxNumTokens and maxBatchSize: buffers grow with both.",
            (
                "Lower engine.limits.gpuMemoryFraction by 0.05: something else takes GPU memory "
                "after the pool is sized (CUDA graphs, NCCL)."
            ),
            "Spread it: more tensor ranks, a further stage, or weights in FP8 or INT4AWQ.",
        ),
        "NVIDIA/TensorRT-LLM#5872",
    )


def host_memory_short(observed: Observed) -> Finding | None:
    """The kernel ended the container: loading needs host memory too."""
    told = _reason(observed, "OOMKilled")
    if not told:
        return None
    return Finding(
        "HostMemoryShort",
        Fit.SHOWN,
        "The container ran out of host memory, not of GPU memory; /dev/shm counts in its limit.",
        (told,),
        (
            "Raise pod.resources.memory: loading reads weights through host memory.",
            "Keep pod.shmSize within it.",
        ),
    )


def ranks_cannot_meet(observed: Observed) -> Finding | None:
    """Ranks wait for a peer that they cannot reach: over PCIe, shared memory or the network."""
    facts = observed.facts
    told = _quoted(_PEER, observed)
    if not (observed.shows(Symptom.HANGS_AT_START) or told):
        return None
    evidence, remedies = [], []
    if told:
        evidence.append(told)
    if facts.nvlink_domain == 0 and (facts.tensor or 1) > 1:
        evidence.append(f"tensor {facts.tensor} on GPUs without NVLink")
        remedies.append(
            "GPUs without NVLink may refuse peer access: set pod.env NCCL_P2P_DISABLE=1, and with "
            "the PyTorch backend engine.config allreduce_strategy: NCCL."
        )
    if (facts.pipeline or 1) > 1:
        evidence.append(f"{facts.pipeline} stages meet over the network")
        remedies.append(
            "Name the network that pods reach each other on: NCCL_SOCKET_IFNAME in pod.env, or a "
            "pod.fabricProfile for InfiniBand and RoCE. Network policies must admit pods of the "
            "same deployment."
        )
    remedies.append("Give ranks room to meet: pod.shmSize of at least 1Gi a rank.")
    remedies.append("Set NCCL_DEBUG=INFO in pod.env; the last line names what a rank waits for.")
    fit = Fit.SHOWN if told else Fit.POSSIBLE
    if not evidence:
        evidence.append("facts.message, nvlinkDomain or pipeline is not known")
    return Finding(
        "RanksCannotMeet",
        fit,
        "Ranks wait for each other and cannot be reached: peer access, shared memory or network.",
        tuple(evidence),
        tuple(remedies),
        "NVIDIA/TensorRT-LLM#9680 (hang on L40S), #16899 (peer access on PCIe cards)",
    )


def gpus_taken(observed: Observed) -> Finding | None:
    """What is asked for exists, and somebody else has it."""
    told = next(
        (
            found
            for reason in ("InsufficientGPUs", "NoSpareGPUs", "QuotaExceeded", "Queued")
            if (found := _reason(observed, reason))
        ),
        "",
    )
    if not (observed.shows(Symptom.WAITS_FOR_GPUS) or told):
        return None
    return Finding(
        "GPUsTaken",
        Fit.SHOWN if told else Fit.POSSIBLE,
        "A replica is placed whole or not at all, and no block of free GPUs is large enough.",
        (told or "the condition Placed says how many GPUs are free, and the largest block",),
        (
            "`shardwright map` shows who holds them; scale something down or add nodes.",
            "A smaller replica fits smaller blocks: FP8 or INT4AWQ weights, `shardwright plan`.",
            "For a candidate beside what serves: rollout.buildOn Borrow.",
        ),
    )


def _quoted(pattern: re.Pattern[str], observed: Observed) -> str:
    """The line of the message that a pattern knows, "" when none."""
    for line in observed.facts.message.splitlines():
        if pattern.search(line):
            words = " ".join(line.split())
            return f"the message says: {words[:200]}{'…' if len(words) > 200 else ''}"  # noqa: PLR2004
    return ""


def _reason(observed: Observed, reason: str) -> str:
    return f"status has the reason {reason}" if reason in observed.facts.reasons else ""
