"""What runs inside pods: standard library only, so that it starts in every vendor's image."""
