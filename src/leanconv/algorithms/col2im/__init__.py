"""Transposed convolutions as a product whose results are added where they overlap.

    cols[i, (o, k)] = sum over c of x[c, i] · w[c, (o, k)]
    y[o, i·s + k·d - p] += cols[i, (o, k)]                i: pixels of the input, k: taps

    x  (c, pixels) ─┐
                    ├─ product ─ cols (pixels, (o, k)) ─ runs added ─ y (o, height, width)
    w  (c, (o, k)) ─┘

             i = 0  |==taps==|
             i = 1      |==taps==|          a stride apart: where runs overlap, they are added
             i = 2          |==taps==|

    for chunk (image, group, unit of outputs, band of the output):
        y = bias
        for panel of columns, for tile of the band's pixels, the last one first:
            a register tile of sums over c, stored in the scratch
            its runs (a row of the kernel's taps lies side by side in y) are added to y
        y = activation(y)

Weights are in memory once, and no product is computed that is none of the layer's; phases
(`operators.transposed`) make a convolution of each remainder of the stride instead, most of whose
lanes and taps are zeros where there are few outputs and many phases. A band's chunk alone writes
its outputs, and computes the columns of the few pixels before it again that reach into it: bits
depend on no tile, panel, band, batch or thread.

- Bytes: for each thread rows · width · e of a register tile, 32 for each pixel of a band, 8 for
  each run, and the input of a band where 16 panels or more read it. Weights: columns of a unit of
  outputs, rounded up to whole panels, times C · e.
- Error: that of C / g products one after the other, and of an output's taps after that.
- When: few outputs and large strides, by estimate: inverse STFTs, patches to pixels, scores that
  are enlarged. float32 and float64.
- Source: the gradient of Caffe's im2col. There is no reference form: tests compare with
  onnxruntime, and with exact sums of integers.

Reading order: `algorithm` (what it takes, tiles, cost), `layout` (extents, bytes, table
of runs), `kernel`.
"""

from leanconv.algorithms.col2im.algorithm import NAME, candidate, cost, refusal

__all__ = ["NAME", "candidate", "cost", "refusal"]
