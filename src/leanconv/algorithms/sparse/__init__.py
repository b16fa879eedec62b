"""Convolution that leaves out the weights that are 0.

    y[n, k, p] = act(bias[k] + residual + sum over the weights w[k, c, t] that are not 0 of
        x[n, c, p·s + t·d - pad] · w[k, c, t])

l lanes of a vector, V vectors of a tile; a place is a channel of a block and a tap.

    for chunk (image, group, some output channels, some rows and columns):
        for block of input channels:
            copy what the tile reads into scratch, once for each tap of a row;
            a 1x1 kernel reads a tile where it stands if its planes begin with a line
            for output channel k:  for i in the stream of k:
                broadcast w[i]; V loads of x at place[i], V FMAs
        residual, activation, store

The pattern is data: the code is the same for all patterns, and holds the sizes of tiles alone. No
size of a map is in the stream, so that all sizes share it. Where four neighbouring outputs have
their zeros at the same places, one stream serves them: each vector of x that is loaded is used four
times.

Where all images together have at most 16 pixels and the kernel is 1x1, or covers its map, a layer
is a product of a matrix and few vectors. Lanes then run along outputs, in slices of 32 (S of them):

    for chunk (some pixels p, some slices):
        copy x[p] into scratch
        for slice:  for step:
            load w[32] and place[32]
            for p:  look x[p, first + place[32]] up in registers, 32 FMAs

In a step each output of the slice multiplies its next weight that is not 0, if its input is among
16, 32 or 64 neighbours, which registers hold: `vpermi2ps` looks 16 lanes up in 32 of them, five
times as fast as a gather. Else the output waits. Outputs are sorted by their numbers of weights, in
windows of 512. At 90 % zeros anywhere two of three lanes of a step have a weight.

- Bytes: 6 for each weight that is not 0 (10 in float64) and 8 for each block of channels of each
  output channel; scratch is a tile's input, and its sums where there are several blocks. Of slices,
  162 for each step (290 in float64) and 132 for each slice; scratch is the pixels' input.
- Error: u · (1 + 1.5 sqrt(L)), L the products of a dense sum. Results are those of `naive` to the
  bit, but for the sign of a zero: a product with 0 changes no sum of finite numbers. Where x is
  infinite or NaN and meets a weight of 0, a dense sum is NaN and this one is not.
- When: planes, from about 50 % zeros on in 1x1 kernels; in 3x3 kernels, where Winograd is the other
  choice, from 85 to 90 %. Refused: channels in blocks or last, strides over 4 along rows. Of few
  pixels, also with channels last: from 60 % on at one pixel, from 80 % on at eight (Zen 5).
- Bound by loads: a vector of x serves one product, so that V FMAs take V + 1 loads. Slices of one
  pixel are bound by the stream of weights, of more by lookups, about one a cycle.
- Source: M. Elsen et al., Fast Sparse ConvNets, CVPR 2020, for 1x1 kernels; here with taps. Slices
  of sorted rows: M. Kreutzer et al., SIAM J. Sci. Comput. 36 (2014); their steps are our own.

Reading order: `kernel`, `algorithm` (what is packed, tile, cost); `graph.slices`, `sliced`,
`sliced_plan` for few pixels.
"""

from leanconv.algorithms.sparse.algorithm import SPARSE

__all__ = ["SPARSE"]
