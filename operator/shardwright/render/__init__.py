"""Pure manifests: from resolved plans to Kubernetes objects as plain dictionaries."""
