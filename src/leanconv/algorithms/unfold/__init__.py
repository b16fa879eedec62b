"""Unfolding windows into a matrix or a tensor: im2col, MEC and im2win.

    unfolded[c·channel + sum over a of (p_a·position[a] + k_a·tap[a])] =
        x[c, …, p_a·stride[a] + k_a·dilation[a] - pad[a], …]          for every unfolded axis a

    im2col  M[(oh, ow), (kh, kw, c)]     all axes      copies what windows share
    MEC     L[n, ow, ih, (kw, c)]        the width     rows of an output row are one run of L
    im2win  I[n, c, oh, iw, (kh)]        the height    a window is one run of kw · kh elements

What overlaps is shared by strides only: the product over all three is direct convolution
(`direct.kernel.DirectConv`) over an `UnfoldedView`, with the tap count and leading dimension that
the method has. Along an axis that is not unfolded, padding is not stored.

              ih
    im2col  |w0|w1|w2|  each window apart        oh·ow · kh·kw·C
    MEC     |====P====|                          ow · ih · kw·C       partitions P, Q, R overlap:
              |====Q====|                        read in place, a leading dimension apart
    im2win  rows under one output row together   oh · iw · kh·C

    whole:  one stage unfolds the batch (im2col: one image), the next multiplies
    rows=R: for chunk (image, block of R rows, part of the output channels):
                unfold the block into scratch; multiply it while it is in L2

- Bytes: im2col N=1: oh·ow · kh·kw · C · e (MEC equation 2); MEC: N · ow · ih · kw · C · e (equation
  3); im2win: N · C · oh · iw · kh · e (thesis equation 2-4). By rows: one block in each thread's
  scratch. Weights as for direct convolution.
- Error: u · (1 + 1.5 sqrt(L)).
- When: im2col from planes to planes with a long stride (`lanes=pixels`), and of blocks whose pixels
  a stride leaves out. Else only on request, for comparison: direct convolution reads the same
  elements in place, and unfolding adds to its time.
- Source: Caffe's im2col; MEC: Cho and Brand, ICML 2017, arXiv 1706.06873, algorithms 1 and 2,
  equations 2 to 4; im2win: Lu Shuai's thesis, algorithms 2 to 6, equations 2-2 to 2-7, 3-1, 3-2;
  HPEC 2022, arXiv 2306.14320. As written: `reference/im2col.py`, `mec.py`, `im2win.py`.

Reading order: `unfolding` (index maps, copies), `kernels`, `candidates` (views, whole
tensors, blocks of rows), then `im2col`, `mec`, `im2win_layout` and `im2win`; `window_kernels` has
the thesis' algorithms 5 and 6 as printed.
"""

from leanconv.algorithms.unfold.im2col import IM2COL
from leanconv.algorithms.unfold.im2win import IM2WIN
from leanconv.algorithms.unfold.mec import MEC

__all__ = ["IM2COL", "IM2WIN", "MEC"]
