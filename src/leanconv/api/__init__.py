"""What the user calls: one function for a convolution, one for a network."""
