"""shardwright: a Kubernetes operator that serves large language models split over many GPUs.

The package is installed from ``operator/``, which is a source root and never a package itself:
an ``__init__.py`` there would shadow the standard library's ``operator`` module.
"""

__version__ = "0.1.0"
