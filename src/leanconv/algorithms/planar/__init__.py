"""Convolution of tensors in planes with lanes along the output columns.

    y[n, k, oh, ow] = act(bias[k] + residual + sum over kh, kw, c of
        x[n, g·ig + c, oh·sh + kh·dh - ph, ow·sw + kw·dw - pw] · w[k, c, kh, kw])

ig, og: input and output channels of a group; l lanes of a vector; L = ig · kh · kw.

    lanes            ow    ow+1   ow+2  …  ow+l-1
    x (one vector)  [  x   |  x   |  x  |  …  ]   loaded once, used for every output channel
    w (broadcast)      w[k, c, kh, kw]
    acc[k, vector] += x · w

    for chunk (image, some output channels of a group, some rows):
        for row oh, for tile of some vectors of columns:
            for kh, c, kw: load vectors of x; for k: broadcast w, FMA
            residual, activation, store

Weights are read as they are given. At stride s every s-th lane of s neighbouring vectors is taken
(`shuffles.deinterleave`). Columns in the padding are masked off, in tiles of their own at both ends
of a row. Depthwise layers share loads among rows of the output (`depthwise`); 1x1 layers
treat the whole map as one row, with partial sums (`pointwise`).

- Bytes: no workspace; weights as given, K · ig · kh · kw · e.
- Error: u · (1 + 1.5 sqrt(L)); pointwise L' as direct convolution.
- When: NCHW with few channels in a group and wide rows: no lane is idle however few output channels
  there are, and stores need no transpose. Refused: channels in blocks, NHWC,
  strides over 4, and more than 512 taps along a row (128 with padding).
- Source: no paper; the vector axis of stencil codes.

Reading order: `columns` (tiles of a row, masks), `kernel` (rows of any width), `depthwise`,
`pointwise`, `algorithm`.
"""

from leanconv.algorithms.planar.algorithm import PLANAR

__all__ = ["PLANAR"]
