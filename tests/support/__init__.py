"""What tests share: arrays, models and problems, runners of kernels and nodes, checks, workers.

Everything here is imported as `support.…`, whichever folder a test is in: one name, one module.
"""
