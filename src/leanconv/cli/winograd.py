"""`leanconv winograd M R`: the matrices of F(M, R), exact, and what they save and cost."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from leanconv.cli.options import UsageError, add_output_options, positive
from leanconv.cli.output import print_json, print_text, progress, terminal_columns
from leanconv.errors import SpecError
from leanconv.winograd.error import error_estimate, gamma_squared
from leanconv.winograd.matrices import Matrix, Transform, balance, transform
from leanconv.winograd.program import compile_matrix

_MOST_ALPHA = 64  # the exact check takes m r alpha^2 steps; 64 take seconds
_ESTIMATE_CHANNELS = 64
_INFINITY = "infinity"
_USELESS = 0.01  # of an error, relative to the results
HELP = "print the exact matrices of F(M, R)"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument("m", type=positive, metavar="M", help="outputs of a tile")
    parser.add_argument("r", type=positive, metavar="R", help="taps of the filter")
    parser.add_argument(
        "--points",
        metavar="P,P,...",
        help="the M + R - 2 finite points, such as --points=0,1,-1,2,-2 for the textbooks' F(4, 3) "
        "(default: the best known); infinity, which is always there as well, may follow them",
    )
    parser.add_argument(
        "--balance", action="store_true", help="even out the matrices' rows by powers of two"
    )
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    m, r = options.m, options.r
    if m + r - 1 > _MOST_ALPHA:
        raise UsageError(
            f"F({m}, {r}) has {m + r - 1} points; expected M + R - 1 of at most {_MOST_ALPHA} "
            f"(beyond about 16 the rounding errors leave nothing of float32)"
        )
    with progress(f"computing F({m}, {r})"):
        try:
            made = transform(m, r, _finite(options.points))
        except SpecError as error:
            raise UsageError(f"--points {options.points}: {error}") from error
        if options.balance:
            made = balance(made)
        report = _report(made)
    if options.json:
        print_json(report)
    else:
        for heading, rows in [(_summary(made, report), []), *_named_matrices(made, report)]:
            print_text(heading, options.wide)
            for line in _aligned(rows, None if options.wide else terminal_columns()):
                print(line)
    return 0


def _finite(text: str | None) -> list[str] | None:
    """The points that `--points` gives, without the infinity at their end."""
    if text is None:
        return None
    points = [point for point in text.replace(" ", "").split(",") if point]
    return points[:-1] if points and points[-1] == _INFINITY else points


def _report(made: Transform) -> dict[str, Any]:
    m, r = made.m, made.r
    return {
        "m": m,
        "r": r,
        "alpha": made.alpha,
        "points": [str(point) for point in made.points] + [_INFINITY] * (m > 1 and r > 1),
        "at": _strings(made.at),
        "g": _strings(made.g),
        "bt": _strings(made.bt),
        "gamma_squared": float(gamma_squared(made)),
        "gamma_squared_exact": str(gamma_squared(made)),
        "error_estimate": error_estimate(made, made, reduction=_ESTIMATE_CHANNELS),
        "error_estimate_channels": _ESTIMATE_CHANNELS,
        "multiplications": {
            "1d": made.alpha,
            "1d_direct": m * r,
            "1d_saving": m * r / made.alpha,
            "2d": made.alpha**2,
            "2d_direct": (m * r) ** 2,
            "2d_saving": (m * r / made.alpha) ** 2,
        },
        "operations": {name: len(compile_matrix(matrix).ops) for name, matrix in _matrices(made)},
    }


def _matrices(made: Transform) -> tuple[tuple[str, Matrix], ...]:
    return (("at", made.at), ("g", made.g), ("bt", made.bt))


def _strings(matrix: Matrix) -> list[list[str]]:
    return [[str(value) for value in row] for row in matrix]


def _summary(made: Transform, report: dict[str, Any]) -> str:
    counts, operations = report["multiplications"], report["operations"]
    lines = [
        f"{made}:  y = A^T [(G g) * (B^T d)],  y_i = sum_k g_k d_(i+k)",
        f"points           {', '.join(report['points']) or 'none needed'}",
        f"gamma^2          {report['gamma_squared']:.4g} (direct 1; growth of the error in 2-D: "
        "the mean over outputs i of sum_k A^T[i,k]^2 |G_k|^2 |B^T_k|^2 / R, with rows of G and B^T "
        "in the 2-norm)",
        f"error expected   {report['error_estimate']:.1e} in 2-D, float32, "
        f"{_ESTIMATE_CHANNELS} channels (direct "
        f"{error_estimate(reduction=_ESTIMATE_CHANNELS * made.r**2):.1e}): gamma^2 amplifies the "
        f"rounding of transforms and of sums of {_ESTIMATE_CHANNELS} products; direct sums "
        f"{_ESTIMATE_CHANNELS * made.r**2}, not amplified",
    ]
    if report["error_estimate"] > _USELESS:
        lines.append(f"                 of no use in float32: more than {_USELESS:.0%} of a result")
    lines += [
        f"multiplications  {counts[key]} instead of {counts[key + '_direct']} in {name} "
        f"({counts[key + '_saving']:.2f}x)"
        for key, name in (("1d", "1-D"), ("2d", "2-D"))
    ]
    lines.append(
        f"operations       {operations['bt']} for B^T d, {operations['g']} for G g, "
        f"{operations['at']} for A^T m (additions and multiply-adds, shared)"
    )
    return "\n".join(lines)


def _named_matrices(made: Transform, report: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    found = []
    for label, (key, _) in zip(("A^T", "G", "B^T"), _matrices(made), strict=True):
        rows: list[list[str]] = report[key]
        found.append((f"\n{label} ({len(rows)} x {len(rows[0])})", rows))
    return found


def _aligned(rows: list[list[str]], width: int | None) -> Iterator[str]:
    """The rows of a matrix, in columns; in blocks of as many columns as fit."""
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, columns = 0, len(widths)
    while first < columns:
        last, taken = first + 1, 2 + widths[first]
        while last < columns and (width is None or taken + 2 + widths[last] <= width):
            taken += 2 + widths[last]
            last += 1
        if last - first < columns:
            yield f"  columns {first + 1} to {last}:"
        for row in rows:
            pairs = zip(row[first:last], widths[first:last], strict=True)
            yield "  " + "  ".join(cell.rjust(size) for cell, size in pairs)
        first = last
