"""From symptoms to causes and remedies: what is wrong with a deployment that somebody describes.

Pure functions over an observed description, which comes from a live object or from a file. Each
rule knows one cause; the tuple of rules is the documentation.
"""
