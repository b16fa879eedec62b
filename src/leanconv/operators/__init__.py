"""From nodes of a graph that are convolutions, or several of them, to kernels."""
