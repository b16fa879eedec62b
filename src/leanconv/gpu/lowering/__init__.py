"""From operations to launches: which kernels, with which tiles, on which buffers. Data only."""
