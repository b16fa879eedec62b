"""Methods of the gradient of a convolution's weights, from its input and its output's gradient.

    dw[k, c, t] = sum over n, o of  dy[n, k, o] · x[n, c, o·s + t·d - pad]

    direct      register tiles over pixels that are copied into strips
    depthwise   groups of one or a few input channels: an accumulator for each tap
    im2col      x lowered to a matrix of windows, transposed, times dy
    mec         x lowered along the width alone; rows of outputs read overlapping parts of that
    winograd    F(r, m): its outputs are the weights, its filters the tiles of dy
    naive       the sum as it is written

Their problem is that of the convolution, whose `propagation` says what is computed: `conv.x` is
where x lies, `conv.y` where dy does. Kernels have the roles `"x"`, `"dy"` and `"dw"`; dw is
(K, C / groups, kd, kh, kw), row-major, of the type of the sums. Directly:

    for chunk (part of the pixels, channels of x, panels of outputs):
        for block of images and rows:
            copy pixels of x into a strip [pixel][channels], zeros in the padding
            for panel: copy dy into [pixel][outputs of the panel]
                for row of taps, rows of (tap, channel): register tile over all pixels of the block
        store dw, or the sums of a part, which are added in a fixed order

A sum is split into parts by the shape alone, so that the bits of a result do not depend on the
number of threads.

- Bytes: strips and panels in each thread's scratch, at most half of L2; dw once for each part. The
  lowered tensors of im2col and MEC, V, U and M of Winograd's blocks: docs/algorithms.md.
- Error: of plain sums, split: u · (1 + 1.5 sqrt(pixels of a block + blocks)); Winograd's by the
  growth of its matrices, as forward.
- When: direct takes everything; Winograd kernels of 2 and more taps along one or two axes,
  depthwise groups of up to 8 input channels, where they are estimated to be faster.
- Source: Lavin and Gray, "Fast algorithms for convolutional neural networks" (F(r, m) of weights);
  MEC and im2col as their papers lower, the backward pass derived in docs/algorithms.md.

Reading order: `naive`; `strips` (pixels of any layout, copied), `sums` (from panels to dw);
`direct_shape`, `direct_chunk`, `direct_tiles`, `direct_kernel`, `direct`; `depthwise_kernel`,
`depthwise_channels`, `depthwise_columns`, `depthwise`; `lowered_kernel`, `lowered`;
`winograd_tiles`, `winograd_transform`, `winograd_products`, `winograd_sums`, `winograd_blocks`,
`winograd`; `bias`.
"""

from leanconv.algorithms.weight_gradient.depthwise import DEPTHWISE
from leanconv.algorithms.weight_gradient.direct import DIRECT
from leanconv.algorithms.weight_gradient.lowered import IM2COL, MEC
from leanconv.algorithms.weight_gradient.naive import NAIVE
from leanconv.algorithms.weight_gradient.winograd import WINOGRAD

__all__ = ["DEPTHWISE", "DIRECT", "IM2COL", "MEC", "NAIVE", "WINOGRAD"]
