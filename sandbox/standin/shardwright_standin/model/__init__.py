"""The tiny transformer: its weights on disk, how they are cut, and the arithmetic of one rank."""
