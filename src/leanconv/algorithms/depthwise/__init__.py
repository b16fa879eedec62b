"""Depthwise and narrow grouped convolution with lanes along the channels.

    y[n, k, oh, ow] = act(bias[k] + residual + sum over kh, kw, j of
        x[n, (k div og)·ig + j, oh·sh + kh·dh - ph, ow·sw + kw·dw - pw] · w[k, j, kh, kw])

ig = C/g and og = K/g, input and output channels of a group; l lanes of a vector.

    outputs of one vector:   group 0    | group 1    | …        floor(l/og) whole groups
    their inputs:            ig channels| ig channels| …        moved to lanes by one shuffle
                                                                (none for ig = og = 1)

    for chunk (image, vector of channels, some rows):
        for row oh, for tile of columns:
            for kh: weights of the tap row stay in registers (up to eight vectors)
                for each input column that a tap of the tile meets: load it once,
                    FMA for every (output column, kw) that it belongs to
            residual, activation, store

Weights of more than eight vectors (ig · kw) are read from L1 where they are multiplied; all the
same, the taps of a row share each pixel that is moved to lanes, up to nine taps at a time.

No broadcast; no lane is wasted unless og does not divide l. Tap rows outside the input are left
out by the loop's bounds, columns by tiles of their own at both ends of a row.

- Bytes: no workspace; weights ceil(K / (floor(l/og)·og)) · kh · kw · ig · l · e.
- Error: u · (1 + 1.5 sqrt(L)) with L = ig · kh · kw, the products of one output; u is the unit
  roundoff.
- When: layers whose channels are neighbours (NHWC, blocks of channels inside a network). Refused:
  one group, NCHW (take `planar`), groups of more outputs than lanes, groups whose inputs cannot be
  shuffled from two vectors; of codes also groups of more than one channel.
- Codes: one dot product for four pixels of a channel; `quads` says how.
- Source: no paper.

Reading order: `kernel`, `quads` (codes of quantised tensors), `algorithm`.
"""

from leanconv.algorithms.depthwise.algorithm import DEPTHWISE

__all__ = ["DEPTHWISE"]
