"""The public functions and classes: one function for a convolution, one for a network."""
