"""Winograd's minimal filtering F(m, r), fused or in stages.

    Y = A^T [ sum over c of (G g G^T) * (B^T d B) ] A        m x m outputs from alpha² products,
                                                             alpha = m + r - 1
    V[xi][tile, c] = (B^T d B)[xi]      U[xi][c, k] = (G g G^T)[xi], offline in float64
    M[xi][tile, k] = sum over c of V[xi][tile, c] · U[xi][c, k]        xi = 0 … alpha² - 1

    d: alpha x alpha inputs   V: alpha² matrices        M: alpha² matrices      Y: m x m outputs
    [tiles overlap by r-1] -> [tiles x channels] · U -> [tiles x outputs]    -> [tiles side by side]

    for chunk (group, part of the output channels, block of tiles):
        for vector of channels, tile: transform a patch across, then down, into V
        for panel of output channels:
            for xi: register tiles of V[xi] · U[xi] into M (partial sums of `sums` products)
            for vector of the panel, tile: transform back, epilogue, store

V and M of a block live in the thread's scratch. `form=stages` transforms all tiles of the batch
first, as the papers have it. Matrices are exact (`leanconv.winograd`), any m and r, height and
width apart. Strides are polyphase: phases are more input channels, with one transform back. A
dilation is decimation: one convolution for each residue. Kernels of more than 7 taps are cut into
pieces that add up in y (`sizes`). At the far edges tiles of fewer outputs skip points, with the
same U (`edge_tiles`); at the point at infinity short phases are left out (`reduction`).

Bytes by int8 weights are convolved exactly: V and U of int16, sums modulo 2^32, tiles of which
`sizes` says, by the weights, that nothing is lost (`leanconv.winograd.variants`).

- Bytes, each thread, P = alpha_h · alpha_w points, S vectors of (phase, channel) pairs:
  P · (S · tiles · l · e + 64) + P · (tiles · vectors · l · e + 64) + max(alpha_h, m_h) · alpha_w ·
  l · e, whatever the image; weights g · P · phases · C/g · ceil(K/g) · e.
- Error: u · sqrt(0.2 + 0.6·axes + 0.085·L') · f · gamma_h · gamma_w, gamma² the growth of the
  variance at the worst output (`leanconv.winograd.error`); 1.7 times that where pieces add up.
- When: two taps or more along an axis and enough channels on both sides. Refused: a depth axis,
  planes with strides other than 1, 2, 4, an accepted error below that of the smallest tile.
- Source: Lavin and Gray 2015, arXiv 1509.09308; Toom-Cook matrices as wincnn makes them; cut
  filters: DWM, arXiv 2002.00552. As written: `reference/winograd.py`.

Reading order: `shape` (sizes, blocks, buffers), `kernel` (the 30 lines of the loop nest above),
`input`, `output`; `reduction`, `edge_tiles` (what we add to the paper); `packing` (constants),
`weight_tiles` (weights that change); `stages`; `sizes` (pieces, parameters, what is exact), `cost`,
`candidates`, `algorithm` (the fastest of them).
"""

from leanconv.algorithms.winograd.algorithm import WINOGRAD

__all__ = ["WINOGRAD"]
