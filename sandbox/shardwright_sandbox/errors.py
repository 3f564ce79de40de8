"""What the sandbox says when it cannot go on."""


class SandboxError(Exception):
    """A failure whose message names what was wrong, with which value, and what to do."""


class RefusedCluster(SandboxError):  # noqa: N818 - it is the verdict, and reads as one
    """The cluster at hand is not one that tests may write to."""
