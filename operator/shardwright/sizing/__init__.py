"""Which shape a model is served in, whether it fits, and why: pure functions of plain data."""
