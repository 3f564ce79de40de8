"""The files of `examples/`, changed in no more than a machine without GPUs needs."""

from __future__ import annotations

import yaml
from tests.real.site import CLAIM, MODEL, SPEC
from tests.standin.running import REPOSITORY
from tests.support.kube import H100, Json, merged


def example(name: str, tensor: int, pipeline: int, model: str = MODEL) -> Json:
    """The spec of an example on the tiny model, in a split that real nodes have room for.

    One replica of it, on the GPUs and with the memory that there are; all else is the file's.
    """
    text = (REPOSITORY / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
    spec: Json = yaml.safe_load(text)["spec"]
    assert spec["storage"] == {"claimName": CLAIM}
    here: Json = {
        # What is on the claim needs no token.
        "model": {"uri": f"pvc://{CLAIM}/{model}", "secretRef": None},
        "gpu": {"product": H100},
        "parallelism": {"tensor": tensor, "pipeline": pipeline},
        "replicas": 1,
        "pod": SPEC["pod"],
    }
    return merged(spec, here)
