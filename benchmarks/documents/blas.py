"""im2col and MEC with a BLAS: our lowering, then NumPy's matmul, which calls the library's GEMM.

Arrays are channels last, as in the MEC paper. NumPy hands a matrix whose rows are runs to the
library as it is, by pointer and leading dimension, so MEC's overlapping partitions are not copied.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from documents.timing import Arrays, Timed
from leanconv.reference.mec import THRESHOLD
from leanconv.runtime.memory import Block
from leanconv.spec import ConvSpec


def im2col(arrays: Arrays, threads: int) -> Timed:
    """Conv.cpu: the matrix of the whole batch, and one product."""
    spec = arrays.spec
    measured = arrays.planned("im2col:rows=batch", threads)
    lower = measured.parts["lower"]
    steps = spec.in_channels * int(np.prod(spec.kernel))
    windows = spec.batch * int(np.prod(spec.output_size))
    matrix = _floats(measured.memory[-1], windows * steps).reshape(windows, steps)
    # The columns are (kh, kw, c), as channels are neighbours in x.
    filters = np.ascontiguousarray(arrays.w.transpose(2, 3, 1, 0)).reshape(steps, -1)
    out = arrays.y.reshape(windows, -1)

    def multiply() -> None:
        np.matmul(matrix, filters, out=out)

    def run() -> None:
        lower()
        multiply()

    return Timed(run, {"lower": lower, "product": multiply}, measured.memory)


def mec(arrays: Arrays, threads: int) -> Timed:
    """MEC.cpu: solution A or B by the paper's rule, products by pointer and leading dimension."""
    spec = arrays.spec
    measured = arrays.planned("mec:solution=B", threads)
    lower = measured.parts["lower"]
    n, (oh, ow), (ih, _) = spec.batch, spec.output_size, spec.size
    (kh, kw), (sh, _), c, k = spec.kernel, spec.stride, spec.in_channels, spec.out_channels
    run_of_row = kw * c
    unfolded = _floats(measured.memory[-1], n * ow * ih * run_of_row).reshape(n * ow, -1)
    filters = np.ascontiguousarray(arrays.w.transpose(2, 3, 1, 0)).reshape(kh * run_of_row, k)
    partitions = [unfolded[:, h * sh * run_of_row : (h * sh + kh) * run_of_row] for h in range(oh)]
    y = arrays.y
    if ow <= THRESHOLD and y.size <= unfolded.size:
        apart = np.empty((oh, n * ow, k), np.float32)

        def multiply() -> None:
            for h, partition in enumerate(partitions):
                np.matmul(partition, filters, out=apart[h])
            flat = unfolded.reshape(-1)[: y.size].reshape(apart.shape)
            flat[...] = apart  # into L, which is read no more, and from there to its place
            y[...] = flat.reshape(oh, n, ow, k).transpose(1, 0, 2, 3)

    else:
        images = [[part[i * ow : (i + 1) * ow] for part in partitions] for i in range(n)]

        def multiply() -> None:
            for i, image in enumerate(images):
                for h, partition in enumerate(image):
                    np.matmul(partition, filters, out=y[i, h])

    def run() -> None:
        lower()
        multiply()

    return Timed(run, {"lower": lower, "product": multiply}, measured.memory)


def last(spec: ConvSpec) -> ConvSpec:
    """The same problem with channels last."""
    return replace(spec, layout="NHWC")


def _floats(block: Block, elements: int) -> np.ndarray:
    return block.view(0, 4 * elements).view(np.float32)
