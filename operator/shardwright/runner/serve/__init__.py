"""Serving: what the runner does in a serving pod, from its checks to its last word.

The leader's pod (stage 0) waits for the others, starts the ranks and watches the engine; the others
follow it. `main` is the whole of it.
"""

from shardwright.runner.serve.start import main

__all__ = ["main"]
