"""Exact Winograd transforms F(m, r): matrices, points, error, straight-line programs.

`matrices` makes A^T, G and B^T from points that it chooses, and balances them by powers of two;
`error` predicts what they cost in accuracy, `variants` leaves points out for tiles of fewer outputs
and has those that are exact in integers, `program` rewrites a matrix as few additions and fused
multiply-adds. Standard library only; nothing here knows of arrays or machines.
"""
