"""Which version of its engine a spec means that names none.

An operator that recommends a newer version changes nothing that runs, and a manifest that is
applied again finds the revision that it once made: who wants another version writes it down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from shardwright.api.asked import AskedSpec
from shardwright.api.engines import leaves_version_open, runtime_of, with_version
from shardwright.api.spec import Runtime
from shardwright.plan.revisions import Revision, asked_digest, spec_digest


def with_kept_version(
    spec: Mapping[str, Any], revisions: Sequence[Revision], serving: Revision | None
) -> Mapping[str, Any]:
    """A spec as written, with the version that was meant where it names none.

    That of the revision which the same manifest made, the newest that it was filled in for before
    all others: so a rollback that applies an old manifest rebuilds nothing. A new wish keeps what
    serves, and before anything does what was asked for last. With none of that runtime the version
    stays open, for the recommended one.

    Args:
        spec: As the user wrote it.
        revisions: The deployment's, by number.
        serving: The one that serves.
    """
    if not leaves_version_open(spec):
        return spec
    runtime = runtime_of(spec, Runtime.TENSORRT_LLM)
    same = [one for one in reversed(revisions) if one.resolved.spec.engine.runtime == runtime]
    once = [one for one in same if _made_by(one, spec)]
    # sorted() is stable: the newest first among those filled in, and among the others.
    found = sorted(once, key=lambda one: one.resolved.version_given is not False)
    found += [one for one in (serving, *revisions[-1:]) if one is not None and one in same]
    return with_version(spec, found[0].resolved.spec.engine.version) if found else spec


def _made_by(revision: Revision, spec: Mapping[str, Any]) -> bool:
    """Whether the spec, with the revision's version, is the one that the revision was made of."""
    resolved = revision.resolved
    try:
        digest = asked_digest(AskedSpec.read(with_version(spec, resolved.spec.engine.version)))
    except ValidationError:
        return False
    own = asked_digest(resolved.asked) if resolved.asked is not None else ""
    return digest in (own, spec_digest(resolved.spec))
