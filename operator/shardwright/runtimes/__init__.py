"""Engine runtimes, one module each behind one interface; adding one touches the registry only."""
