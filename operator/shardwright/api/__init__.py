"""The resource: what a user may ask (spec), what the operator answers (status), and its CRD."""
