"""The loop: settings, queue, lease and the reconcile that ties observe to report."""
