"""Direct convolution: register tiles of output columns by vectors of output channels.

    y[n, k, oh, ow] = act(bias[k] + residual[n, k, oh, ow]
        + sum over kh, kw, c of x[n, c, oh·sh + kh·dh - ph, ow·sw + kw·dw - pw] · w[k, c, kh, kw])

A depth axis is one more axis before the height. N images, C and K input and output channels, g
groups; k, o, s, d, p are kernel, output, stride, dilation and padding before; l lanes of a vector,
e bytes of an element, u the unit roundoff, L = C/g · kh · kw the products of one output.

                 vectors of output channels
                  k 0..l-1   k l..2l-1
    column ow    [ acc 0 0 | acc 0 1 ]      one step of the reduction, for (kh, kw, c):
    column ow+1  [ acc 1 0 | acc 1 1 ]        load `vectors` vectors of w, one straight stream
    column ow+2  [ acc 2 0 | acc 2 1 ]        for each row: broadcast x[c, …], one FMA a vector

    for chunk (image, group, band, panel or all panels, some rows):
        for row oh, for tile of columns:
            start at bias; for kh, kw that touch the input: for c: the step above
            residual, activation, store (transposed in registers if y lies in planes)

Weights are packed `[group][panel][kh][kw][c][vectors·l]`; x is read in place in any layout. Of
integers (`codegen.dot` lists the types, summed in int32) a step multiplies a group of four or two
channels of a block, and weights are packed `[group][panel][kh][kw][c/4][vectors·l][4]`. Padding
is stored nowhere: taps outside the input are left out by loop bounds (kh) and by tiles of their own
at both ends of a row (kw). The tile is chosen by arithmetic: `rows · vectors` accumulators cover
units x latency of the FMAs, and `rows · vectors + vectors + 1` registers exist.

A 1x1 layer from planes to planes has a loop nest of its own (`pointwise`) where that is cheaper:
128 input channels at a time for all tiles of a chunk, so that their 8 KiB of weights stay in L1.

- Bytes: no workspace (`pointwise`: a chunk's sums if L > 128); weights g · L · ceil(K/g)_l · e,
  K/g rounded up to whole vectors.
- Error: u · (1 + 1.5 sqrt(L')), L' = L up to 128 products, 128 + L/128 beyond (partial sums); 0 of
  integers.
- When: whatever the others refuse or do not make cheaper.
- Source: Lu Shuai's thesis on im2win, algorithm 1; register tiles over output columns: LIBXSMM,
  arXiv 1808.05567. The same, unoptimised: `reference/direct.py`.

Reading order: `shape` (weights, prefetch of a later stage's, tile), `kernel` (chunks, tiles, sums),
`excess` (weights that exceed int16), `pointwise`, `plan` (tile, chunks), `algorithm` (cost).
"""

from leanconv.algorithms.direct.algorithm import DIRECT

__all__ = ["DIRECT"]
