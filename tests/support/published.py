"""Matrices and point sets from the literature, and the gamma^2 measured for them."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt

F23_POINTS = "0 1 -1"
F43_POINTS = "0 1 -1 2 -2"

# Lavin & Gray (2015). The signs of the last point are exchanged against ours in F(2, 3).
F23_AT = ((1, 1, 1, 0), (0, 1, -1, -1))
F23_G = ("1 0 0", "1/2 1/2 1/2", "1/2 -1/2 1/2", "0 0 1")
F23_BT = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
F43_AT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
F43_G = (
    "1/4 0 0",
    "-1/6 -1/6 -1/6",
    "-1/6 1/6 -1/6",
    "1/24 1/12 1/6",
    "1/24 -1/12 1/6",
    "0 0 1",
)
F43_BT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)


def rationals(text: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(word) for word in text.split())


def paired(text: str) -> str:
    """`0 2/3 3/2` to `0 2/3 -2/3 3/2 -3/2`."""
    return " ".join(word if word == "0" else f"{word} -{word}" for word in text.split())


_ROOTS = f"0 {Fraction(sqrt(0.5))} {Fraction(sqrt(2))}"

# m, r, finite points, gamma^2 as printed (three digits, two for some).
GAMMA_SQUARED: tuple[tuple[int, int, str, str], ...] = (
    (2, 3, F23_POINTS, "1.67"),
    (3, 3, "0 1 -1 1/2", "6.00"),
    (3, 3, paired("3/8 5/4"), "2.62"),
    (4, 3, F43_POINTS, "10.8"),
    (4, 3, "0 1 -1 1/2 -2", "6.94"),
    (4, 3, paired(_ROOTS), "5.02"),
    (4, 3, paired("0 2/3 3/2"), "4.76"),
    (4, 3, paired("0 .651 1.535"), "4.74"),
    (5, 3, "0 1 -1 1/2 -1/2 -2", "16.6"),
    (5, 3, paired("1/4 7/8 7/4"), "9.69"),
    (6, 3, paired("0 1/2 1 2"), "20.6"),
    (6, 3, paired("0 3/5 1 7/6"), "147"),
    (6, 3, paired("0 1 2 3"), "965"),
    (7, 3, "0 1 -1 1/2 -1/2 2 -2 -1/4", "201"),
    (7, 3, paired("1/4 5/8 9/8 9/4"), "49"),
    (8, 3, "0 1 -1 1/2 -1/2 2 -2 -1/4 4", "320"),
    (8, 3, paired("0 2/5 4/5 5/4 5/2"), "115"),
    (10, 3, paired("0 .360 .696 1 1.436 2.777"), "704"),
    (2, 5, paired("0 .662 1.510"), "5.32"),
    (4, 5, paired("0 1/2 1 2"), "19.1"),
    (2, 7, paired("0 1/2 1 2"), "24.8"),
    (6, 5, paired("0 .417 .80 1.245 2.40"), "94.6"),
    (4, 7, paired("0 .417 .80 1.245 2.40"), "99.9"),
)

# Sets in use that are no optima: Barabasz et al. (2020), other engines, trials.
OTHER_SETS: tuple[tuple[int, int, str], ...] = (
    (9, 3, "0 1 -1 1/2 -1/2 2 -2 -1/4 3/4 -4/3"),
    (10, 3, "0 1 -1 1/2 -1/2 2 -2 -1/4 4 3/4 -4/3"),
    (11, 3, "0 1 -1 1/2 -1/2 2 -2 -1/4 4 3/4 -4/3 1/4"),
    (12, 3, "0 1 -1 1/2 -1/2 2 -2 -1/4 4 1/4 -3/4 4/3 -4"),
    (5, 3, paired("1/3 4/5 5/3")),
    (4, 4, paired("1/3 4/5 5/3")),
    (5, 5, paired("1 2/3 1/4 5/2")),
    (7, 3, paired("1 2/3 1/4 5/2")),
    (3, 2, "0 1 -1"),
    (2, 2, "0 1"),
    (2, 2, "1 -1"),
)
