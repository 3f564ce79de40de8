"""One module for each program that the real images have."""
