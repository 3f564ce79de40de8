"""Ranks: how they talk, and the loop each of them runs."""
