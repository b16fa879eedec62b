"""Convolution by matrix tiles (Intel AMX): 16 columns by 16 outputs by 64 bytes at a time.

    y[n, k, oh, ow] = epilogue(bias[k]
        + sum over kh, kw, c of x[n, c, oh·sh + kh·dh - ph, ow·sw + kw·dw - pw] · w[k, c, kh, kw])

    for chunk (image, group, rows of output, part of the outputs):
        repack the input rows: [part of C][row][column][64 bytes], zeros for the padding
        for two panels of 16 outputs, for two tiles of up to 16 columns:
            four tiles of sums = bias
            for (part of C, kh, kw): two tiles of x, two of w, four products of tiles
            store the sums in scratch

Tiles multiply codes, or bfloat16: then a row has 32 channels where the text says 64, and float32
input is rounded when it is repacked, weights when they are packed.

A tile's row is 64 channels of one pixel, which in blocks of 16 channels lie apart: input rows are
repacked once for all outputs, which also writes the padding and costs a few cycles a pixel. With 32
channels or fewer a row has two neighbouring pixels, or up to 16: as many taps of a row in one step.
Strides are the distance of a tile's rows. A 1x1 kernel with strides repacks what it reads only.

Sums leave tiles through memory alone. Two buffers take turns: while the tiles of one block are
multiplied, vectors of the block before go through the epilogue, a few in each step, since the unit
that multiplies tiles leaves the vector units idle.

- Bytes: scratch for the input rows of a chunk; weights in tiles of 1 KiB, channels rounded up to 4,
  8, 16, 32 or a multiple of 64, outputs to 32.
- Error: 0 of codes; of floats that are rounded to bfloat16, three roundoffs of it (0.012).
- When: the target has tiles (`amx_int8`, `amx_bf16`) and the error is accepted; tensors lie in
  blocks of 16 channels, or are put into such blocks before and behind.
- Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on AMX: two by two
  tiles of sums, and the epilogue of one block between the products of the next.

Reading order: `shape` (what lies where), `input` (repacking), `kernel` (chunks, blocks,
epilogue), `algorithm` (sizes, cost, arrays that lie in no blocks). The instructions:
`codegen/matrix_tiles`.
"""

from leanconv.algorithms.amx.algorithm import AMX

__all__ = ["AMX"]
