"""Real nodes: kubelets with containerd on this machine, each in namespaces of its own.

Starts them, gives them images without a registry and GPUs through the kubelet's device-plugin
socket, and breaks them as hardware and administrators would. Needs root and Linux.
"""
