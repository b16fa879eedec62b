"""The code that runs on the device: one module for each kind of work, real `@triton.jit` functions.

All are written for channels-last tensors (N, H, W, C). Extents and strides are arguments at run
time, so that one compiled kernel serves every shape; what is known about their divisibility is
declared to the compiler.
"""
