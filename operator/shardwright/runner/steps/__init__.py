"""Steps that make artifacts with the vendor's tools, and sweeps that move or delete them."""
