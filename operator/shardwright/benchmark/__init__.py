"""Measured runs of a served model: what they say, where the knee is, what to change. Pure."""
