"""Emission of kernels as LLVM IR, their compilation, and the cache of objects."""
