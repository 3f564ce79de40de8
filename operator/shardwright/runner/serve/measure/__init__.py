"""Reads what engine and GPUs tell of themselves, and shows it under one set of names."""
