"""Multiplications of Winograd convolution, and the parts that strided and large kernels fall into.

Along one axis, a kernel of k taps at stride s is the sum over its phases p < min(s, k) of stride-1
filters with the taps p, p + s, p + 2 s, …, each applied to every s-th input:

    y_i = sum_p sum_j w_{p + s j} x^p_{i + j},        x^p_i = x_{s i + p}

A phase with more taps than wanted is split again into runs of neighbouring taps, as DWM (Huang
et al., AAAI 2020) does: small F(m, r) only, with small errors. Both axes are treated alike and
independently; the parts of a 2-D kernel are all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

from leanconv.errors import SpecError


@dataclass(frozen=True)
class Part:
    """Neighbouring taps of one phase of a kernel, along one axis.

    Attributes:
        phase: p; the part reads inputs p, p + stride, p + 2 stride, ….
        start: the first of these taps: tap j of the part is tap phase + stride (start + j) of the
            kernel, and output i reads element i + start + j of the phase's inputs.
        taps: how many.
    """

    phase: int
    start: int
    taps: int


def phase_taps(kernel: int, stride: int) -> tuple[int, ...]:
    """Return the taps of each phase that has any: (4, 3) of 7 at stride 2, (3, 3, 3, 2) of 11 at 4.

    They differ by one at most.
    """
    _check(kernel=kernel, stride=stride)
    return tuple(len(range(phase, kernel, stride)) for phase in range(min(stride, kernel)))


def axis_parts(kernel: int, stride: int = 1, most_taps: int = 7) -> tuple[Part, ...]:
    """Split a kernel into the fewest parts of at most `most_taps` taps, as equal as possible.

    Raises:
        SpecError: an argument is below 1.
    """
    _check(most_taps=most_taps)
    parts = []
    for phase, taps in enumerate(phase_taps(kernel, stride)):
        count = -(-taps // most_taps)
        start = 0
        for index in range(count):
            size = (taps - start) // (count - index)
            if (taps - start) % (count - index):
                size += 1
            parts.append(Part(phase, start, size))
            start += size
    return tuple(parts)


def multiplications(m: int, n: int, r: int, s: int) -> int:
    """Return those of a tile of F(m x n, r x s): (m + r - 1)(n + s - 1), for m n outputs."""
    _check(m=m, n=n, r=r, s=s)
    return (m + r - 1) * (n + s - 1)


def split_multiplications(
    m: int, n: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1), most_taps: int = 7
) -> int:
    """Return those of m x n outputs where every part of the kernel has an F of its own.

    It is also the count where all phases share the F of the most taps and sum in its domain, if
    phases with a tap fewer, whose transformed weights at infinity are zero, leave that point out.

    Args:
        m, n: outputs of a tile.
        kernel, stride: along both axes; of phases and parts, all pairs are counted.
        most_taps: of a part. Those of a kernel that is not split are `multiplications` for stride
            1; strides alone are counted with `most_taps` of at least ceil(kernel / stride).
    """
    rows, columns = (
        sum(tile + part.taps - 1 for part in axis_parts(k, s, most_taps))
        for tile, k, s in zip((m, n), kernel, stride, strict=True)
    )
    return rows * columns


def saving(
    m: int, n: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1), most_taps: int = 7
) -> float:
    """Return the direct sum's multiplications divided by `split_multiplications`."""
    direct = m * n * kernel[0] * kernel[1]
    return direct / split_multiplications(m, n, kernel, stride, most_taps)


def _check(**values: int) -> None:
    for name, value in values.items():
        if value < 1:
            raise SpecError(f"{name} must be at least 1, got {value}")
