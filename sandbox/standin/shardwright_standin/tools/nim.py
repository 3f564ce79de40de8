"""`nim-serve`: NIM's model-free container, which is vLLM behind a proxy, on a local folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from shardwright_standin import commandline
from shardwright_standin.tools import vllm

# What NIM 2.1.5 holds, by its release notes.
VLLM_VERSION = "0.31.0"
_DEFAULT_PORT = "8000"
_DEFAULT_CACHE = "/opt/nim/.cache"


def main() -> int:
    """The program.

    The proxy listens only once the engine is loaded here; the real one answers /v1/health/live
    before that.
    """
    words = sys.argv[1:]
    commandline.parse("nim-serve", words)
    model = os.environ.get("NIM_MODEL_PATH", "")
    if not model:
        sys.exit("nim-serve: no model: NIM_MODEL_PATH is not set")
    if not Path(model).is_absolute():
        sys.exit(f"nim-serve: the stand-in plays folders by absolute paths only, not {model}")
    cache = Path(os.environ.get("NIM_CACHE_PATH", _DEFAULT_CACHE))
    if not (cache.is_dir() and os.access(cache, os.W_OK)):
        sys.exit(f"nim-serve: NIM_CACHE_PATH {cache} is no folder that can be written")
    port = os.environ.get("NIM_SERVER_PORT", _DEFAULT_PORT)
    own = [model, *words, "--host", "0.0.0.0", "--port", port]  # noqa: S104 - the pod's address
    return vllm.play(own, version=VLLM_VERSION, proxied=True)


if __name__ == "__main__":
    sys.exit(main())
