"""Bytes, durations and shapes as people write and read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from fractions import Fraction
from operator import index
from typing import SupportsIndex

from leanconv.errors import SpecError, short

_BYTE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "byte": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,  # as `docker`, `dd` and `ulimit` have them
}
_NS_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")
_LONGEST = 100  # characters of a number with its unit
MOST_BYTES = 2**64  # that a limit may be
_MOST_NS = 2**62  # that a duration may be: threads can wait so long
_LONGEST_NAME = 40  # characters of a symbolic extent


def parse_bytes(text: str | SupportsIndex) -> int:
    """Read a number of bytes: `4096`, `"4096"`, `"12 MiB"`, `"12MiB"`, `"1.5GB"`, `"8M"`.

    Upper and lower case are alike. A letter alone is the binary unit: `"8M"` are 8 MiB.

    Raises:
        SpecError: the text is no number with a known unit, or the number is negative or endless.
    """
    count = _written(text) if isinstance(text, str) else _counted(text)
    if count is None or not 0 <= count <= MOST_BYTES:
        raise SpecError(
            f"{short(text)} is not a number of bytes; expected an int from 0 to 2^64, or text such "
            "as '12 MiB' (B; kB, MB, GB, TB of 1000; K, M, G, T or KiB, MiB, GiB, TiB of 1024)"
        )
    return count


def _written(text: str) -> int | None:
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    factor = _BYTE_UNITS.get(match[2].lower()) if match else None
    return int(Fraction(match[1]) * factor) if match and factor else None


def _counted(number: SupportsIndex) -> int | None:
    try:
        return None if isinstance(number, bool) else index(number)
    except TypeError:
        return None


def parse_ns(text: str) -> int:
    """Read a duration in nanoseconds: `"2ms"`, `"500 us"`, `"1.5 s"`, `"0"`.

    Raises:
        SpecError: the text is no number with a unit, or more than 146 years.
    """
    if text.strip() == "0":
        return 0
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    factor = _NS_UNITS.get(match[2]) if match else None
    count = int(Fraction(match[1]) * factor) if match and factor else None
    if count is None or count > _MOST_NS:
        raise SpecError(f"{short(text)} is no time; expected text such as '2ms', '500us' or '0'")
    return count


def format_bytes(count: int) -> str:
    """Write a number of bytes with three or four digits and a binary unit, as in `5.74 MiB`."""
    if abs(count) < 2**10:
        return f"{count} B"
    for unit, size in (("KiB", 2**10), ("MiB", 2**20)):
        if abs(count) < size * 1000:
            return f"{count / size:.4g} {unit}"
    return f"{count / 2**30:.4g} GiB"


def format_ns(duration_ns: float) -> str:
    """Write a duration given in nanoseconds with three digits, as in `1.33 ms`."""
    for unit, size in (("ns", 1.0), ("us", 1e3), ("ms", 1e6)):
        if abs(duration_ns) < size * 999.5:
            return f"{duration_ns / size:.3g} {unit}"
    return f"{duration_ns / 1e9:.3g} s"


def counted(count: int, noun: str, several: str = "") -> str:
    """Write a number of things: `1 thread`, `2 threads`; `several` is the plural, if not with s."""
    return f"{count} {noun if count == 1 else several or f'{noun}s'}"


def error_text(error: float) -> str:
    """Write a positive error with three digits, rounded up: the number that is read is no less.

    What a message tells a user to give must work when it is typed in.
    """
    exact = Decimal(error)
    digits = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_CEILING)
    return f"{digits:.2e}".replace("e-0", "e-") if digits else "0"


def shape_text(shape: Sequence[int | str | None] | None) -> str:
    """Write a shape as messages have it and `--shape` takes it: `1x3x224x224`.

    Args:
        shape: numbers; a symbolic extent is written as `<batch>`, or as `N` if it is one
            letter, and None as `?`. None for a rank that is open.
    """
    if shape is None:
        return "of any rank"
    return "x".join(map(_extent, shape)) or "a single number"


def _extent(extent: int | str | None) -> str:
    if not isinstance(extent, str):
        return "?" if extent is None else str(extent)
    name = extent if len(extent) <= _LONGEST_NAME else f"{extent[:_LONGEST_NAME]}…"
    return name if len(name) == 1 and name.isalpha() else f"<{name}>"


def type_text(dtype: object, shape: Sequence[int | str | None] | None) -> str:
    """Write an array's dtype and shape, as in `float32[1x3x224x224]`; `float32[]` is a scalar."""
    if shape is None:
        return f"{dtype} {shape_text(shape)}"
    return f"{dtype}[{shape_text(shape) if len(shape) else ''}]"
