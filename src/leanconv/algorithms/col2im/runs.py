"""The table of runs: what of a panel's columns lies side by side in y, and where it is added."""

from __future__ import annotations

import numpy as np

from leanconv.spec.format import ceil_div

RUN = 6  # numbers of a run: column, length, block of outputs, and its place along d, h and w
PLACE = 4  # numbers of a pixel: where its columns begin along d, h and w, and in y


def run_table(
    kernel: tuple[int, int, int], dilation: tuple[int, int, int], block: int, unit: int, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """The runs of a unit's columns (output, kd, kh, kw, channel of the block), cut at panels.

    Args:
        kernel, dilation: along depth, height and width.
        block: channels of a block of y, 1 in planes.
        unit: blocks of outputs, or outputs in planes.
        width: columns of a panel.

    Returns:
        (panels, 2): each panel's first run, and the one past its last; and (runs, RUN).
    """
    (down, high, across), apart = kernel, dilation
    beside = across if apart[2] == 1 else 1  # taps of a run
    length = beside * block
    shape = (unit, down, high, across // beside)
    columns = int(np.prod(shape)) * length
    # Runs begin at multiples of their length, and again where a panel begins inside one.
    starts = np.unique(np.concatenate([np.arange(0, columns, n) for n in (length, width)]))
    numbers, inside = np.divmod(starts, length)
    output, d, h, w = np.unravel_index(numbers, shape)
    table = np.empty((len(starts), RUN), np.int64)
    table[:, 0] = starts % width
    table[:, 1] = np.diff(starts, append=columns)
    table[:, 2], table[:, 3], table[:, 4] = output, d * apart[0], h * apart[1]
    table[:, 5] = w * apart[2] * block + inside
    firsts = np.searchsorted(starts, np.arange(0, columns + width, width))
    panels = ceil_div(columns, width)
    return np.stack([firsts[:panels], firsts[1 : panels + 1]], axis=1), table
