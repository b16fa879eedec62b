"""Filters as sums of few products of one factor for each axis: how many they need, and which.

Factors are exact where that is possible: `[1, 4, 6, 4, 1]` along both axes, whole or over 256. Sums
of small whole numbers stay exact then. Else they are those of the singular value decomposition in
float64: of two axes directly, of three by that of depth and the rest first.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence

import numpy as np

from leanconv.graph.zeros import Known
from leanconv.records import dataclass
from leanconv.types import FLOAT64, as_dtype

LEAST_TAPS = 5  # along one axis, from which on taking filters apart may pay
MOST_TERMS = 3
_PART = 0.25  # of the rounding of sums that may be left
_ROUNDED = 2.0  # roundoffs of a result that rounding a filter to its type leaves
_LARGEST = 5.0  # times the root mean square: the largest error of many
_OWN = 3 * FLOAT64.roundoff  # what the decomposition rounds, relative
_CLASS = 0.5  # roundoffs between which no difference is made
_WHOLE = 2.0**53  # whole numbers below this are exact in float64
Term = tuple[np.ndarray, np.ndarray, np.ndarray]  # along depth, height, width; float64


@dataclass(frozen=True)
class Factors:
    """What an algorithm for separable filters needs to know of them.

    Attributes:
        rank: terms that the filter needs that needs most; where they are more than `MOST_TERMS`, of
            the first such filter.
        error: that what they leave adds to a result, relative, in the max norm; 0.0 where all
            factors are exact.
        pays: whether the terms have fewer taps than the filters, of which enough, and no sums of
            whole numbers are rounded that were not.
    """

    rank: int
    error: float
    pays: bool

    def drawn(self, shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
        """Draw filters (K, 1, taps…) that are sums of as many terms."""
        filters = np.zeros(shape)
        for _ in range(min(self.rank, MOST_TERMS)):
            term = np.ones(shape)
            for axis, taps in enumerate(shape[2:], 2):
                term *= random.standard_normal(taps).reshape(-1, *[1] * (len(shape) - axis - 1))
            filters += term
        return filters


def factors_of(w: np.ndarray, steps: float, least_taps: int = LEAST_TAPS) -> Factors | None:
    """Return how filters are sums of products.

    Args:
        w: weights (K, C/g, taps…), any view; those that stand for others say what these have.
        steps: the error of the plain sum of a filter's products, in roundoffs.
        least_taps: along the axis that has most.

    Returns:
        None for filters of several input channels, of less than two axes or fewer taps, and for
        numbers that are not finite.
    """
    if isinstance(w, Known):
        return w.factors if isinstance(w.factors, Factors) else None
    taps = w.shape[2:]
    axes = sum(size > 1 for size in taps)
    if axes < 2 or max(taps) < least_taps or w.shape[1] != 1 or not w.size:
        return None
    if w.dtype not in (np.float32, np.float64):
        return None
    filters, most = _different(w), allowed(w.dtype, steps)
    first = _three(filters[0])
    if not np.isfinite(first).all():
        return None
    if (rank := _least_rank(first, most)) > MOST_TERMS:
        return Factors(rank, 0.0, pays=False)
    found = hashlib.blake2b(filters.tobytes(), digest_size=16).digest()
    key = found, w.shape, w.dtype, steps, least_taps
    if key not in _known:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = _of_all(filters, most, taps)
    return _known[key]


# By a digest of filters that are separable: a plan asks for them several times.
_known, _MOST_KNOWN = dict[Hashable, "Factors | None"](), 256


def _of_all(w: np.ndarray, most: float, taps: tuple[int, ...]) -> Factors | None:
    """The same for filters (K, taps…), all of which are taken apart."""
    rank, error, exact = 1, 0.0, True
    if not np.isfinite(w).all():
        return None
    for each in w:
        terms, left = taken_apart(_three(each), most, w.dtype)
        rank = max(rank, len(terms))
        if len(terms) > MOST_TERMS:
            return Factors(len(terms), 0.0, pays=False)
        error, exact = max(error, left), exact and left == 0
    pays = max(taps) >= LEAST_TAPS and rank * sum(n for n in taps if n > 1) < math.prod(taps)
    pays = pays and (exact or not (w == np.rint(w)).all())
    step = _CLASS * _roundoff(w.dtype)
    stated = 0.0 if exact else _LARGEST * step * max(1, math.ceil(error / step))
    return Factors(rank, stated, bool(pays))


def _least_rank(w: np.ndarray, most: float) -> int:
    """Terms that a filter (kd, kh, kw) needs at least: those of the matrix of its first axis."""
    axis = next(axis for axis in range(3) if w.shape[axis] > 1)
    s = np.linalg.svd(w.reshape(w.shape[axis], -1), compute_uv=False)
    left = _tails(s / (s[0] or 1.0))
    return int(np.count_nonzero(left > most * left[0]))


def _tails(s: np.ndarray) -> np.ndarray:
    """What each singular value and those after it come to."""
    found: np.ndarray = np.sqrt(np.cumsum(np.square(s[::-1])))[::-1]
    return found


def _different(w: np.ndarray) -> np.ndarray:
    """The filters (K, taps…), one where all are the same memory."""
    filters: np.ndarray = w[:, 0]
    return filters[:1] if not w.strides[0] else filters


def _three(each: np.ndarray) -> np.ndarray:
    """A filter with all three axes, in float64."""
    return each.reshape((1,) * (3 - each.ndim) + each.shape).astype(np.float64)


def _roundoff(dtype: np.dtype) -> float:
    return as_dtype(dtype).roundoff


def allowed(dtype: np.dtype, steps: float) -> float:
    """What terms may leave of a filter, relative, in the root mean square.

    A quarter of the rounding of sums, what rounding the filter to its type leaves in any case, and
    what taking it apart rounds.
    """
    return (_PART * steps + _ROUNDED) / _LARGEST * _roundoff(dtype) + _OWN


def factors_of_all(w: np.ndarray, terms: int, steps: float) -> np.ndarray:
    """The factors of filters that need no more terms than these.

    Args:
        w: weights (K, 1, kd, kh, kw).
        terms: of each filter; those that need fewer have terms of zeros.
        steps: as of `factors_of`.

    Returns:
        (K, terms, kd + kh + kw), in the type of w.
    """
    packed = np.zeros((len(w), terms, sum(w.shape[2:])), w.dtype)
    most = allowed(w.dtype, steps)
    for number, each in enumerate(w[:, 0]):
        found, _ = taken_apart(each.astype(np.float64), most, w.dtype)
        for term, factors in enumerate(found):
            packed[number, term] = np.concatenate(factors)
    return packed


def taken_apart(w: np.ndarray, most: float, dtype: np.dtype) -> tuple[list[Term], float]:
    """Take a filter (kd, kh, kw) of finite float64 apart.

    The factor along an axis of one tap is 1.

    Args:
        w: the filter.
        most: what terms may leave, relative, in the root mean square.
        dtype: of the factors.

    Returns:
        The fewest terms that leave no more, and what they leave; 0.0 for factors that are exact.
    """
    exact = _exact(w, dtype)
    if exact is not None:
        return [exact], 0.0
    largest = float(np.abs(w).max())
    w = w / largest
    size = float(np.linalg.norm(w))
    # Where one axis has one tap, one of both steps leaves nothing.
    first = most * size / (1 if min(w.shape) == 1 else math.sqrt(2))
    planes, terms = _products(w.reshape(len(w), -1), first), list[Term]()
    for along, rest in planes:
        plane = rest.reshape(w.shape[1:])
        terms += [(along, *pair) for pair in _products(plane, first / math.sqrt(len(planes)))]
    made = sum(np.einsum("i,j,k->ijk", *term) for term in terms)
    left = float(np.linalg.norm(w - made)) / size
    return [_balanced(term, largest) for term in terms], max(left, 2.0**-60)


def _products(matrix: np.ndarray, most: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """The fewest products of a unit column and a row that leave at most so much of a matrix."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    rank = max(1, int(np.count_nonzero(_tails(s) > most)))
    return [(u[:, i], s[i] * v[i]) for i in range(rank)]


def _balanced(term: Term, scale: float) -> Term:
    """Factors whose products are so much larger, and of one size where there are several taps."""
    sizes = [float(np.abs(factor).max()) or 1.0 for factor in term]
    axes = max(1, sum(len(factor) > 1 for factor in term))
    each = (math.prod(sizes) * scale) ** (1 / axes)
    signs = math.prod(
        float(factor[0]) / size
        for factor, size in zip(term, sizes, strict=True)
        if len(factor) == 1
    )
    made = [
        factor * (each / size) if len(factor) > 1 else np.ones(1)
        for factor, size in zip(term, sizes, strict=True)
    ]
    several = [axis for axis, factor in enumerate(made) if len(factor) > 1]
    if several:
        made[several[0]] = made[several[0]] * signs
    return made[0], made[1], made[2]


def _exact(w: np.ndarray, dtype: np.dtype) -> Term | None:
    """Factors that are exact: whole numbers without common divisors, and one that is scaled."""
    some = w[w != 0]
    if not some.size:
        return np.ones(w.shape[0]), np.ones(w.shape[1]), np.zeros(w.shape[2])
    mantissas, exponents = np.frexp(some)
    numbers = np.ldexp(mantissas, 53).astype(np.int64)
    lowest = np.frexp((numbers & -numbers).astype(np.float64))[1] + exponents
    power = int(lowest.min()) - 54  # of 2, of which all are multiples
    whole = np.ldexp(w, -power)
    pivot = np.unravel_index(int(np.abs(whole).argmax()), w.shape)
    if not abs(whole[pivot]) < _WHOLE:
        return None
    factors, rest = list[np.ndarray](), float(whole[pivot])
    for axis in range(3):
        place = [slice(index, index + 1) for index in pivot]
        place[axis] = slice(None)
        along = whole[tuple(place)].reshape(-1)
        common = int(np.gcd.reduce(along.astype(np.int64)))
        factors.append(along / common if len(along) > 1 else np.ones(1))
        rest /= float(factors[axis][pivot[axis]])
    if rest != np.rint(rest):
        return None
    several = [axis for axis in range(3) if w.shape[axis] > 1] or [2]
    for axis in several[:-1]:  # of a size near 1, so that no inner sum overflows
        over = int(np.frexp(np.abs(factors[axis]).max())[1])
        factors[axis], power = np.ldexp(factors[axis], -over), power + over
    factors[several[-1]] = np.ldexp(factors[several[-1]] * rest, power)
    made = np.einsum("i,j,k->ijk", *factors)
    held = all((factor.astype(dtype) == factor).all() for factor in factors)
    return (factors[0], factors[1], factors[2]) if held and (made == w).all() else None
