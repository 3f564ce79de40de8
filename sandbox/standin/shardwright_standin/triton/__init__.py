"""Triton's model repository: its text form, its rules."""
