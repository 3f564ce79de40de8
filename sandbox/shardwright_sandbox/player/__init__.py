"""Plays the containers of our pods on simulated nodes.

It reads the same request that a real runner would (`runner/contract`),
works in the claim's real folder, and speaks through the pod's status: started,
ready, ended with a report. What it may be told to do wrong is in `control.py`.
"""

from shardwright_sandbox.player.control import (
    Act,
    Control,
    Delays,
    Match,
    PlayerControl,
    Rule,
)

__all__ = ["Act", "Control", "Delays", "Match", "PlayerControl", "Rule"]
