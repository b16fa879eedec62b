"""What kernels of several methods have in common."""
