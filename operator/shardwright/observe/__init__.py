"""From watched objects to a frozen World: projections, GPU inventory, NVLink domains, levels."""
