"""Convolution with separable filters: along one axis after the other.

    w[k, i, j] = sum over the terms r of u[k, r, i] · v[k, r, j]

    y[n, k, i, j] = act(bias[k] + residual + sum over r, b of v[k, r, b] ·
        sum over a of u[k, r, a] · x[n, c, i·s + a·d - pad, j + b·d - pad])

    for chunk (image, filter, some rows of output):
        for each term r of the filter:
            for vector of columns: the sums over a of some rows, into scratch
        for row of output, vector of columns:
            broadcast v[k, r, b]; load the sums b columns on, one FMA each
        residual, activation, store

Strides: height leaves rows out; along rows scratch keeps every s-th column side by side, or lanes
are gathered where s does not divide their number. Channels that are neighbours (last, or in blocks)
make one long row, whose taps are a pixel apart and whose factors have a number for each lane.

A filter of n x n takes 2 n products a term for each output instead of n^2, one of three axes 3 n.
The inner sums of some rows are in scratch, in L1; padding with zeros commutes with both.

- Bytes: sum of the kernel's extents for each term of each filter, instead of their product;
  scratch is the tile's rows of inner sums.
- Error: u · (1 + 1.5 sqrt(terms · taps)), taps the sum of the kernel's extents, and 3 u for factors
  that are rounded, and five times what the terms leave of the filter. Filters of whole numbers that
  have one term have exact factors: sums of small whole numbers are exact then. Others are not,
  and are never taken apart automatically.
- When: one input channel a group, filters of one to three terms, from 5 taps on along one axis,
  where strides leave fewer products than the filter has taps. Refused: filters of more terms,
  weights that are data, several filters of a channel where channels are neighbours.
- Bound by multiply-adds along columns; along rows by shuffles and by loads that cross cache lines.
  From some 12 taps on scratch keeps even and odd columns apart: a load then serves two outputs.
- Source: the singular value decomposition of a filter: S. Treitel and J. Shanks, The Design of
  Multistage Separable Planar Filters, IEEE Trans. Geoscience Electronics 9 (1971).

Reading order: `graph/factors` (how a filter is taken apart), `shape` (rows and scratch), `strip`
(sums along columns), `kernel` (along rows), `algorithm` (tile, cost).
"""

from leanconv.algorithms.separable.algorithm import SEPARABLE

__all__ = ["SEPARABLE"]
