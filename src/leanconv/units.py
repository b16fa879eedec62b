"""Bytes and durations as people write and read them."""

from __future__ import annotations

import re

from leanconv.errors import SpecError

_BYTE_UNITS: dict[str, int] = {
    "": 1,
    "b": 1,
    "bytes": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Read a number of bytes: `4096`, `"4096"`, `"12 MiB"`, `"1.5GB"`.

    Raises:
        SpecError: the text is no number with a known unit, or the number is negative.
    """
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    factor = _BYTE_UNITS.get(match.group(2).lower()) if match else None
    if match is None or factor is None:
        raise SpecError(
            f"{text!r} is not a number of bytes; expected an int of at least 0, or text such as "
            f"'12 MiB' (units: B, kB, MB, GB, KiB, MiB, GiB)"
        )
    return (
        int(float(match.group(1)) * factor)
        if "." in match.group(1)
        else (int(match.group(1)) * factor)
    )


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
