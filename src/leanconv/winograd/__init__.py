"""Exact Winograd transforms F(m, r): matrices, points, error, straight-line programs, counts.

`matrices` makes A^T, G and B^T from points, `points` chooses these, `search` found them, `error`
predicts what they cost in accuracy, `balance` moves powers of two between the matrices, `program`
rewrites a matrix as few additions and fused multiply-adds, `counts` splits kernels and counts
multiplications. Standard library only; nothing here knows of arrays or machines.
"""
