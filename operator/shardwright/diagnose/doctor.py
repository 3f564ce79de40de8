"""The rules in order, and the one function that asks them all."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.diagnose import accuracy, load, loading, split
from shardwright.diagnose.finding import Finding, Fit, Rule
from shardwright.diagnose.observed import Observed

RULES: tuple[Rule, ...] = (
    loading.engine_built_for_other_shape,
    loading.engine_built_for_other_gpu,
    loading.engine_built_by_other_version,
    loading.engine_incomplete,
    loading.out_of_memory,
    loading.host_memory_short,
    loading.ranks_cannot_meet,
    loading.gpus_taken,
    split.tensor_beyond_nvlink_domain,
    split.tensor_finer_than_work,
    split.pipeline_bubble,
    load.int4_at_large_batch,
    load.experts_split_for_latency,
    load.batch_limit_reached,
    load.kv_cache_full,
    load.first_token_compute,
    accuracy.int8_outliers,
    accuracy.range_of_fp16,
    accuracy.kv_cache_too_coarse,
    accuracy.four_bit_calibration,
)
_ORDER = (Fit.SHOWN, Fit.POSSIBLE, Fit.RULED_OUT)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, surest first; rules of one fit keep their order."""

    findings: tuple[Finding, ...]

    @property
    def causes(self) -> tuple[Finding, ...]:
        """Causes that are shown or possible."""
        return tuple(finding for finding in self.findings if finding.found)

    @property
    def ruled_out(self) -> tuple[Finding, ...]:
        """What was looked at and is not it."""
        return tuple(finding for finding in self.findings if not finding.found)


def diagnose(observed: Observed) -> Diagnosis:
    """Ask every rule.

    A cause that facts show is named also where nobody complained of it. When one is shown for a
    group of rules that exclude each other (why an engine fails to load), the merely possible ones
    of that group are left out.
    """
    answers = [found for rule in RULES if (found := rule(observed)) is not None]
    if any(found.fit is Fit.SHOWN and found.rule.startswith("Engine") for found in answers):
        answers = [
            found
            for found in answers
            if found.fit is not Fit.POSSIBLE or not found.rule.startswith("Engine")
        ]
    return Diagnosis(tuple(sorted(answers, key=lambda found: _ORDER.index(found.fit))))
