"""Every operator that leanconv takes, in some sizes, axes and types, against ONNX Runtime.

    python benchmarks/operators.py                          all of them, a quarter of an hour
    python benchmarks/operators.py --quick                  the first case of each operator
    python benchmarks/operators.py --only CumSum,Tile       those of some operators
    python benchmarks/operators.py --record operators       the table that stands for good

Each engine has a process of its own with one thread, and they are measured in turns by the CPU time
of that thread, so that other work on the machine matters little. Both get the same file of one
node, whose cases are in `operator_cases.py`, and their answers are compared before.

A time is the least of the rounds' medians, a ratio ONNX Runtime's time over leanconv's. Exit code
3: one is below `--least`, or answers differ. `LEANCONV_TARGET=haswell` measures leanconv's code for
another CPU; ONNX Runtime's is then still this one's.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from harness import Peers, Run, add_record_option, effort, script, write_results
from leanconv.cli import EXIT_NOT_MET
from leanconv.cli.engines import machine
from leanconv.errors import InputError
from leanconv.graph.convert import FILE_RULES
from leanconv.settings import current_settings
from operator_cases import NO_CASE, Case, built, cases
from pages.tables import measured_on, table
from pages.wrapping import wrapped

_TOLERANCE = 1e-3  # of the largest number; codes may differ by one
_BELOW = 0.9  # ratios that the page explains
_QUICK = 3, 0.01  # rounds, and seconds of a turn

# Why the cases of an operator, or the one case of these words, may be below `_BELOW`.
_PASSES = "composed of several kernels, each of which reads and writes a whole tensor"
_COPIED = "one copy: the C library moves a long run faster than a loop of loads and stores does"
_CALL = "the kernel takes as long as a copy; the rest is the call and memory for the output"
_ANY_LENGTH = "one code for rows of any length; one for each number of vectors is 1.5 times as fast"
_LONGER_CALL = "the kernel takes less than onnxruntime's whole run; the call takes 4 us more"
_TILED = "copies into and out of the layout of matrix tiles take a fifth of the time"
EXPLAINED: Mapping[str, str] = {
    "RotaryEmbedding": _PASSES,
    **dict.fromkeys(("ReduceMax 1x64x56x56 =i64:3,", "ReduceMin 1x64x56x56 =i64:3,"), _ANY_LENGTH),
    "Exp": _LONGER_CALL,
    "Tanh": "within 2.5 units of the last place; onnxruntime's ratio of polynomials errs by 4.4",
    "com.microsoft.DynamicQuantizeMatMul": _TILED,
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Split"), _COPIED),
    **dict.fromkeys(("And", "Or", "Xor", "Not", "BitwiseNot", "Pad", "Tile"), _CALL),
    "Acos": "computed in double, within 0.5 units of the last place; onnxruntime's floats err by 4",
    "Unique": "its sizes follow from data: a quarter is NumPy's, the rest binds the node in each "
    "run",
    "MaxUnpool": "a check of each place, which may count from the end, takes a tenth",
    "Col2Im": "a transposed convolution by weights of 0 and 1: nine products for each that counts",
    "com.microsoft.QLinearSoftmax": "a sum in order and a quotient in double, as onnxruntime's, "
    "are half of the time; the rest is composed of ten kernels",
    "MatMulInteger": _TILED,
    "com.microsoft.MatMulIntegerToFloat": f"{_TILED}, a cast and a scaling of its result another",
    "Transpose 1x84x8400 perm=[0,2,1]": "rows of 336 bytes cross cache lines, beyond the second "
    "cache; 80 for 84 rows are as fast, 84x1024 1.4 times as fast",
    **dict.fromkeys(
        (
            *("CumSum 1x8x256x256 =i64:2", "CumSum 1000x64 =i64:0", "CumSum i64:128x768 =i64:0"),
            *("CumSum i32:64x56x56 =i64:0", "Cast i64:128x768 to=INT32"),
            *("Cast i32:128x768 to=INT64", "Cast f16:512x512 to=FLOAT", "Cast d:512x512 to=FLOAT"),
            *("Cast u8:512x512 to=INT32", "Cast d:512x512@0..100 to=INT32"),
            *("Cast 512x512@0..100 to=FLOAT16", "Gather 1x64x56x56 =i64:3,1,2 axis=1"),
        ),
        _CALL,
    ),
}


def _leanconv(case: Case) -> tuple[Run, str]:
    import leanconv as lc

    model, given = built(case)
    net = lc.load(model, threads=1)
    return lambda: net.run(None, given), lc.__version__


def _onnxruntime(case: Case) -> tuple[Run, str]:
    import onnxruntime

    model, given = built(case)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, given), onnxruntime.__version__


_ENGINES = {"leanconv": _leanconv, "onnxruntime": _onnxruntime}


def difference(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """How far answers are apart: of floats relative to the largest, of integers beyond one."""
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        if not theirs.size:
            continue
        a, b = (np.nan_to_num(each.astype(np.float64)) for each in (ours, theirs))
        apart = np.abs(a - b).max()
        if theirs.dtype.kind in "biu":
            worst = max(worst, float(apart - 1))
        else:
            worst = max(worst, float(apart / max(1e-30, np.abs(b).max())))
    return worst


def measure(case: Case, peers: Peers, rounds: int, seconds: float) -> dict[str, Any]:
    """One row: times in seconds, the ratio, the difference; or which engine refused it, and why."""
    row: dict[str, Any] = {"name": case.name, "operator": case.operator}
    answers = []
    for name in _ENGINES:
        try:
            answers.append(peers.prepare(name, case)[1])
        except InputError as error:
            return {**row, "refused": f"{name}: {error}".splitlines()[0][:200]}
    row["difference"] = difference(*answers)
    times = peers.times(_ENGINES, rounds, seconds)
    row["seconds"] = {name: min(of) for name, of in times.items()}
    row["ratio"] = row["seconds"]["onnxruntime"] / row["seconds"]["leanconv"]
    return row


def missing() -> list[str]:
    """Operators that have neither a case nor a reason to have none."""
    return sorted(set(FILE_RULES) - {case.operator for case in cases()} - set(NO_CASE))


def _chosen(only: str, quick: bool) -> list[Case]:
    names = {name.casefold() for name in only.split(",") if name}
    found = [case for case in cases() if not names or case.operator.casefold() in names]
    return (
        list({case.operator: case for case in reversed(found)}.values())[::-1] if quick else found
    )


def reason(row: Mapping[str, Any]) -> str:
    """Why a case may be slow: what is said of it, else of its operator."""
    return EXPLAINED.get(row["name"]) or EXPLAINED.get(row["operator"], "")


def _line(row: Mapping[str, Any], least: float) -> str:
    if "refused" in row:
        return f"{'-':>9} {'-':>9}      -  {row['name']}: {row['refused']}"
    ours, theirs = (f"{row['seconds'][name] * 1e3:9.4f}" for name in _ENGINES)
    marks = " <--" if row["ratio"] < least else ""
    marks += " DIFFERS" if row["difference"] > _TOLERANCE else ""
    return f"{ours} {theirs} {row['ratio']:6.2f}  {row['name']}{marks}"


def page(document: Mapping[str, Any]) -> str:
    """The table as a page: operators by their least ratios, then cases that are slow, with why."""
    timed = [row for row in document["rows"] if "ratio" in row]
    by_operator: dict[str, list[dict[str, Any]]] = {}
    for row in timed:
        by_operator.setdefault(row["operator"], []).append(row)
    operators = []
    for name, rows in by_operator.items():
        ratios = [row["ratio"] for row in rows]
        mean = statistics.geometric_mean(ratios)
        slowest = min(rows, key=lambda row: float(row["ratio"]))["name"].partition(" ")[2]
        operators.append((min(ratios), [name, str(len(rows)), f"{mean:.2f}", slowest]))
    operators.sort()
    shown = [[*row[:3], f"{least:.2f}", f"`{row[3]}`"] for least, row in operators]
    slow = [
        [f"`{row['name']}`", *(f"{row['seconds'][name] * 1e3:.4f}" for name in _ENGINES),
         f"{row['ratio']:.2f}", reason(row) or "not known yet"]
        for row in sorted(timed, key=lambda row: float(row["ratio"]))
        if row["ratio"] < _BELOW
    ]  # fmt: skip
    refused = [[f"`{row['name']}`", row["refused"]] for row in document["rows"] if "refused" in row]
    head = (
        "# Operators\n\n"
        f"{measured_on(document)}\n\n"
        "One thread; milliseconds of its CPU time; a ratio is ONNX Runtime's time over leanconv's. "
        "Cases are written as `benchmarks/operator_cases.py` says.\n"
    )
    parts = [wrapped(head), "", f"## Cases below {_BELOW}", ""]
    parts += table(["case", *_ENGINES, "ratio", "why"], slow) if slow else ["None."]
    heads = ["operator", "cases", "geometric mean", "least ratio", "of the case"]
    parts += ["", "## All operators", "", *table(heads, shown)]
    if refused:
        parts += ["", "## Not compared", "", *table(["case", "refused by"], refused)]
    parts += [
        "",
        "## Not measured",
        "",
        *table(["operator", "why"], [list(x) for x in NO_CASE.items()]),
    ]
    return "\n".join(parts) + "\n"


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="OPERATOR,…", help="these operators alone")
    parser.add_argument("--quick", action="store_true", help="the first case of each, short turns")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.03, help="of a turn")
    parser.add_argument("--least", type=float, default=_BELOW, help="the least ratio that is well")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    add_record_option(parser)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = _QUICK
    peers = Peers(_ENGINES)
    print(" ".join(f"{name:>9.9}" for name in _ENGINES) + "  ratio  case, times in ms")
    rows = []
    for case in _chosen(options.only, options.quick):
        rows.append(measure(case, peers, options.rounds, options.seconds))
        print(_line(rows[-1], options.least), flush=True)
    peers.stop()
    timed = [row for row in rows if "ratio" in row]
    bad = [row for row in timed if row["ratio"] < options.least and not reason(row)]
    wrong = [row for row in timed if row["difference"] > _TOLERANCE]
    ratios = [row["ratio"] for row in timed] or [1.0]
    mean = statistics.geometric_mean(ratios)
    print(
        f"{len(timed)} cases: {mean:.2f} on average, least {min(ratios):.2f}; {len(bad)} below "
        f"{options.least} without a reason, {len(wrong)} differ, {len(rows) - len(timed)} refused"
    )
    for name in missing():
        print(f"{name} has no case: give it one in operator_cases.py, or a reason")
    document = {
        "machine": machine.describe().to_json(),
        "effort": {"threads": 1, **effort(options, "rounds", "seconds")},
        "target": current_settings().target,
        "rows": rows,
    }
    write_results(document, options.out, page)
    return EXIT_NOT_MET if bad or wrong or missing() else 0


if __name__ == "__main__":
    script(main)
