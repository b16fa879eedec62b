"""Tiled Fourier transforms (overlap-save), for large kernels.

    Y[tile, k, f] = sum over c of X[tile, c, f] · V[c, k, f]          for every frequency f
    X = F(tile of x),   V = conj F(w) / T², made once in float64,   y = a part of F^-1(Y)

T is 16 or 32 (a channel that meets no other: to 256; so on request, or for whole images). A
circular correlation is the wanted one wherever the kernel does not wrap around:

    |<---------- T inputs ---------->|
    |<-- step outputs -->|  wrapped  |      step <= T - taps + 1; the next tile starts after step

    for chunk (group, slice of output channels, block of tiles):
        for tile, vector of channels: transform rows, then columns, into bins
        for bin: matrix product of complex numbers, by the micro-kernel on real ones
        for tile, vector of output channels: transform back, epilogue, store

Transforms are real ones, emitted as straight-line code, and leave bins = 2·(T/2+1) + (T/2-1)·T
complex numbers (130 for T = 16, 514 for T = 32). A product of a bin takes 4 real multiplications,
or 3 (Gauss) with a third plane re + im. The product of bin b reads slot b + 1 and writes slot b:
inputs and results share one buffer. A kernel too long for T is cut into parts, each input tile
still being transformed once. Strides become phases and dilations residues, as for Winograd.
Depthwise layers have lanes along channels and products by element.

Channels that meet no other and are fewer than lanes have lanes along tiles (`plane_kernel`):

    for chunk (channel, vector of tiles):
        for term (part, phase), row: read a line of each tile, transpose, transform
        for column of the spectrum: transform, multiply, transform back
        for row of outputs: transform back, transpose, epilogue, store a line of each tile

- Bytes, each thread: ((bins + 1) · slot + T · (T + 1) · l + (T + 2·l) · l) · e (`layout`); they do
  not grow with the image. Weights g · bins · q · (C/g · phases · parts) · ceil(K/g)_l · e with q 2
  (3 for Gauss). Lanes along tiles: about terms · T · (T + 1) · l · e each thread (`layout`),
  weights 2 · g · bins · terms · e.
- Error: u · (4 + log2 T + 0.65 sqrt(C/g · phases · parts)). An infinity or a NaN spoils its tile.
- When: kernels for which Winograd's points are too many: from 9x9 on, from 3x3 on with 16 channels.
  Refused: a depth axis, groups that do not fill blocks of channels.
- Source: tiles: fbfft, arXiv 1412.7580; regular and Gauss products: Zlateski and others, ICS 2019,
  arXiv 1809.07851; tiles taken all the way: arXiv 1912.02165; kernels in parts: uniformly
  partitioned convolution of audio. As written: `reference/fft.py`.

Reading order: `overlap_save` (one axis), `layout` (bins and slots), `kernel`, `network` (short
transforms as straight-line code), `transform`, `packing`, `cost`; the kernel for one channel,
`plane_kernel`; `algorithm`.
"""

from leanconv.algorithms.fft.algorithm import FFT

__all__ = ["FFT"]
