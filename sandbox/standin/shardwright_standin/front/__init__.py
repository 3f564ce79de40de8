"""The HTTP side: an OpenAI-style server in front of rank 0."""
