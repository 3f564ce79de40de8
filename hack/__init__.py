"""Programs of the project's own workshop; nothing here is installed."""
