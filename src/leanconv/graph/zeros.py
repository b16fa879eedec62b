"""How many weights are 0, and which: counted once, where a sample shows that it may matter."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from math import prod
from operator import gt

import numpy as np

from leanconv.files import mapped_file
from leanconv.graph.edit import release_read
from leanconv.graph.ir import is_filled
from leanconv.records import dataclass

_RUNS, _RUN = 16, 256  # weights of the sample
_READ, _COUNTED = 1 << 20, 1 << 18  # weights that are read at once, that are counted at once
_PIECE_BYTES = 2**20  # of weights that are looked through at once
_THINNED = 0.98  # of a mask of too many steps, what is left
_SAMPLED = 0.2  # zeros of a sample from which on all weights are counted
TOGETHER = 4  # outputs whose weights may be 0 at the same places
LEAST = 0.3  # zeros from which on they may pay
MOST_PIXELS = 16  # outputs of a filter, of all images, up to which lanes may run along filters


@dataclass(frozen=True)
class Zeros:
    """What algorithms that leave out zeros need to know of weights.

    Attributes:
        nonzeros: weights that are not 0.
        blocks: of `TOGETHER` neighbouring outputs, places where one has a weight that is not 0; 0
            where the outputs are no multiple.
        pattern: a digest of which these are.
        steps: of all slices (`graph.slices`), for each span; empty where they are no matrix, or are
            not counted.
    """

    nonzeros: int
    blocks: int
    pattern: str
    steps: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """What costs depend on."""
        return self.nonzeros, self.blocks, *self.steps

    def drawn_for_slices(self, shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
        """Draw a mask as `drawn` does, of fewer weights if slices of as many take more steps."""
        from leanconv.graph.slices import count_steps

        mask = self.drawn(shape, random)
        while any(map(gt, count_steps(mask), self.steps)):
            mask &= random.random(shape) < _THINNED
        return mask

    def drawn(self, shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
        """Draw a mask (K, C/g, taps…) of as many weights and blocks that are not 0."""
        outputs, each = shape[0], prod(shape[1:])
        if not self.blocks:
            mask = np.zeros(outputs * each, bool)
            mask[random.permutation(mask.size)[: self.nonzeros]] = True
            return mask.reshape(shape)
        blocks = np.zeros((outputs // TOGETHER * each, TOGETHER), bool)
        some = random.permutation(len(blocks))[: self.blocks]
        blocks[some, random.integers(0, TOGETHER, len(some))] = True
        left = np.flatnonzero(~blocks & blocks.any(axis=1, keepdims=True))
        more = random.permutation(left)[: self.nonzeros - self.blocks]
        blocks.reshape(-1)[more] = True
        mask = blocks.reshape(-1, each, TOGETHER).transpose(0, 2, 1)
        return np.ascontiguousarray(mask).reshape(shape)


class Known(np.ndarray):
    """An array that stands for weights of which zeros are known, `Factors`, and `PairTraits`."""

    zeros: Zeros | None = None
    factors: object = None
    pairs: object = None


def known(
    stand_in: np.ndarray, zeros: Zeros | None, factors: object, pairs: object = None
) -> np.ndarray:
    """Return an array of which `zeros_of` and the like say so: it stands for such weights."""
    if zeros is None and factors is None and pairs is None:
        return stand_in
    found = stand_in.view(Known)
    found.zeros, found.factors, found.pairs = zeros, factors, pairs
    return found


def zeros_of(w: np.ndarray, least: float = LEAST, sliced: bool = False) -> Zeros | None:
    """Return what is known of the zeros of weights; None if fewer than a part of them are.

    Args:
        w: weights (K, C/g, taps…), any view; those that stand for others say what these have.
        least: the part. Where it is not 0, a sample of 4,096 decides whether all are counted.
            Weights in halves, and those that are one number, repeated or not, have none.
        sliced: whether steps of slices are counted, too.
    """
    if isinstance(w, Known):
        return w.zeros
    repeats = any(not step for size, step in zip(w.shape, w.strides, strict=True) if size > 1)
    if w.dtype not in (np.float32, np.float64) or w.size < 2 or repeats:
        return None
    if least and _sampled(w) < _SAMPLED:
        release_read(w)
        return None
    nonzeros, blocks, found = 0, 0, hashlib.blake2b(digest_size=16)
    whole, each = len(w) % TOGETHER == 0, w[0].size
    step = max(1, _COUNTED // (TOGETHER * each)) * TOGETHER
    for first in range(0, len(w), step):
        mask = w[first : first + step] != 0
        nonzeros += int(np.count_nonzero(mask))
        if whole:
            blocks += int(np.count_nonzero(mask.reshape(-1, TOGETHER, each).any(axis=1)))
        found.update(np.packbits(mask).tobytes())
    release_read(w)
    if 1 - nonzeros / w.size < least:
        return None
    steps: tuple[int, ...] = ()
    if sliced:
        from leanconv.graph.slices import count_steps, may_be_sliced  # for few layers alone

        steps = count_steps(w) if may_be_sliced(w.shape) else ()
        release_read(w)
    return Zeros(nonzeros, blocks, found.hexdigest(), steps)


def _sampled(w: np.ndarray) -> float:
    """The part of zeros in some runs of weights, from beginning to end."""
    if not w.flags.c_contiguous:
        w = w[:: max(1, len(w) // _RUNS)]
        return 1 - np.count_nonzero(w) / w.size
    flat = w.reshape(-1)
    if flat.size <= _RUNS * _RUN:
        return float(1 - np.count_nonzero(flat) / flat.size)
    runs = flat[: flat.size // _RUNS * _RUNS].reshape(_RUNS, -1)[:, :_RUN]
    return 1 - np.count_nonzero(runs) / runs.size


def has_empty(w: np.ndarray, axes: Collection[int]) -> bool:
    """Return whether weights have some index along an axis, 0 or 1, at which all of them are 0.

    Weights of which few are 0 are hardly read for that.
    """
    if mapped_file(w) is None:
        return any(_has_empty(w, axis) for axis in axes)
    found = 1 in axes and _has_empty(w, 1)
    release_read(w)  # the system maps more of a file than is read
    step = max(1, _PIECE_BYTES // max(1, w[:1].nbytes))
    for first in range(0, len(w) if 0 in axes and not found else 0, step):
        part = w[first : first + step]
        found = found or _has_empty(part, 0)
        release_read(part)
    return found


def _has_empty(w: np.ndarray, axis: int) -> bool:
    firsts = w[(0,) * axis + (slice(None),) + (0,) * (w.ndim - 1 - axis)]
    if np.count_nonzero(firsts) == len(firsts):
        return False
    if is_filled(w):
        return True
    weights = w.reshape(*w.shape[:2], -1).swapaxes(0, axis)
    left = np.flatnonzero(firsts == 0)
    first, step = 0, 1
    while left.size and first < weights.shape[1]:
        left = left[~weights[left, first : first + step].any(axis=(1, 2))]
        most = _READ // max(1, left.size * weights.shape[2])
        first, step = first + step, max(1, min(4 * step, most))
    return bool(left.size)
