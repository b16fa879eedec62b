"""Gaussian filters of one image: taken apart, whole, and by OpenCV and SciPy.

    python benchmarks/separable.py --record separable
    python benchmarks/separable.py 512 --taps 7 15 --terms 2
    python benchmarks/separable.py 512 --taps 5 --forms rgb half

A Gaussian of n x n (with more terms: sums of Gaussians turned by the next one's width) on a square
image, padded by zeros: gray, of three channels that lie last (`rgb`), with stride 2 along both axes
(`half`), or both (`rgb-half`). Rivals are our best plan of any other algorithm, `cv2.sepFilter2D`,
which is given both factors, `cv2.filter2D`, and `scipy.ndimage.correlate1d` along one axis after
the other, each where it is installed; of strided ones `cv2.pyrDown`, whose five taps and border are
its own, and `cv2.sepFilter2D`, of whose results three quarters are dropped. A round is one turn of
each in one thread, by its CPU time, and who begins changes. A ratio is the median over rounds of a
rival's time over ours; above 1, `algorithm="separable"` is the faster one. The error is of the
largest result, against float64.

Exit code 3: `separable` is chosen where it is slower than another plan of ours or than
`cv2.sepFilter2D`, a ratio that must be reached is not, or the error is above the stated one.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import leanconv as lc
from harness import Run, add_record_option, effort, script, turn, write_results
from leanconv.cli import EXIT_NOT_MET
from leanconv.cli.engines import machine
from leanconv.cli.options import positive
from leanconv.errors import SpecError
from pages.tables import measured_on, others, table
from pages.wrapping import wrapped

Document = dict[str, Any]
SIDES, TAPS = (512, 2048), (5, 7, 11, 15, 31)
OTHERS = "planar", "fft", "depthwise"
FORMS = {"gray": (1, 1), "rgb": (3, 1), "half": (1, 2), "rgb-half": (3, 2)}  # channels, stride
# What our best other plan over this one must reach, of one term.
MUST = {
    (512, 5): 2.0,
    (512, 7): 2.6,
    (512, 11): 2.6,
    (2048, 7): 2.0,
    (2048, 11): 2.0,
    (2048, 15): 2.0,
}


def gaussian(n: int, width: float) -> np.ndarray:
    """n numbers of a bell, whose sum is 1."""
    bell = np.exp(-((np.arange(n) - n // 2) ** 2) / (2 * width**2))
    found: np.ndarray = bell / bell.sum()
    return found


def factors(n: int, terms: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The factors of each term, down and across."""
    widths = [n / (6 + 3 * term) for term in range(terms + 1)]
    return [(gaussian(n, widths[i]), gaussian(n, widths[i + (terms > 1)])) for i in range(terms)]


def rivals(
    x: np.ndarray, w: np.ndarray, n: int, terms: int, given: dict[str, Any]
) -> Iterator[tuple[str, Run]]:
    """What computes the same, by name: our plans, and functions of packages that are there."""
    for name in OTHERS:
        try:
            plan = lc.plan_conv2d(x.shape, w, algorithm=name, threads=1, **given)
        except SpecError:
            continue
        yield name, partial(plan, x, out=np.empty_like(plan(x)))
    image, stride = x.reshape(x.shape[2:] if x.shape[1] == 1 else x.shape[1:]), given["stride"]
    if (cv2 := _module("cv2")) is not None:
        cv2.setNumThreads(1)
        zeros, down, out = cv2.BORDER_CONSTANT, factors(n, terms)[0][0].astype("f4"), image.copy()
        if terms == 1:
            yield (
                "cv2.sepFilter2D",
                lambda: cv2.sepFilter2D(image, -1, down, down, dst=out, borderType=zeros),
            )
        if stride == 1:
            yield (
                "cv2.filter2D",
                lambda: cv2.filter2D(image, -1, w[0, 0], dst=out, borderType=zeros),
            )
        elif n == 5:
            small = cv2.pyrDown(image)
            yield "cv2.pyrDown", lambda: cv2.pyrDown(image, dst=small)
    if (ndimage := _module("scipy.ndimage")) is not None and terms == stride == 1:
        along = factors(n, 1)[0][0].astype("f4")

        def twice() -> np.ndarray:
            half = ndimage.correlate1d(image, along, axis=0, mode="constant")
            found: np.ndarray = ndimage.correlate1d(half, along, axis=1, mode="constant")
            return found

        yield "scipy.ndimage twice", twice


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def measure(side: int, n: int, form: str, options: argparse.Namespace) -> Document:
    """A row: one filter of one image."""
    random, (channels, stride) = np.random.default_rng(0), FORMS[form]
    exact = sum(np.outer(down, across) for down, across in factors(n, options.terms))
    w = np.repeat(np.asarray(exact, np.float32)[None, None], channels, 0)
    shape = (1, 1, side, side) if channels == 1 else (1, side, side, channels)
    given: dict[str, Any] = {"padding": n // 2, "stride": stride, "groups": channels}
    given["layout"] = "NCHW" if channels == 1 else "NHWC"
    x = random.random(shape, np.float32)
    plan = lc.plan_conv2d(shape, w, algorithm="separable", threads=1, **given)
    y = np.empty_like(plan(x))
    runs: dict[str, Run] = {"separable": lambda: plan(x, out=y)}
    runs |= dict(rivals(x, w, n, options.terms, given))
    times = list(rounds(runs, options.rounds, options.seconds))
    ours = [each["separable"] for each in times]
    wide = lc.conv2d(x.astype(float), w.astype(float), algorithm="direct", **given)
    return {
        "side": side,
        "taps": n,
        "form": form,
        "chosen": lc.plan_conv2d(shape, w, threads=1, **given).algorithm,
        "us": 1e6 * statistics.median(ours),
        "ratios": {
            name: statistics.median(each[name] / each["separable"] for each in times)
            for name in runs
            if name != "separable"
        },
        "must": MUST.get((side, n)) if options.terms == 1 and form == "gray" else None,
        "error": float(np.abs(plan(x) - wide).max() / np.abs(wide).max()),
        "stated": plan.predicted_error,
    }


def rounds(runs: dict[str, Run], count: int, seconds: float) -> Iterator[dict[str, float]]:
    """The seconds of each in each round."""
    names = list(runs)
    for number in range(count):
        order = names[number % len(names) :] + names[: number % len(names)]
        yield {name: turn(runs[name], seconds, time.thread_time) for name in order}


def least(row: Document, names: Callable[[str], bool]) -> float:
    """The ratio of the best of some rivals."""
    found: float = min(ratio for name, ratio in row["ratios"].items() if names(name))
    return found


def failures(document: Document) -> list[str]:
    """Say what is not as it must be."""
    found = []
    for row in document["rows"]:
        name, ours = (
            f"{row['taps']}x{row['taps']} on {row['side']}, {row['form']}",
            least(row, OTHERS.__contains__),
        )
        if ours < max(row["must"] or 0, row["chosen"] == "separable"):
            found.append(f"{name}: {ours:.2f} of our best other plan")
        if row["ratios"].get("cv2.sepFilter2D", 1) < 1:
            found.append(f"{name}: {row['ratios']['cv2.sepFilter2D']:.2f} of cv2.sepFilter2D")
        if not row["error"] <= row["stated"]:
            found.append(f"{name}: the error is {row['error']:.1e}, stated {row['stated']:.1e}")
    return found


def page(document: Document) -> str:
    """Write the page of a result."""
    names = list(dict.fromkeys(name for row in document["rows"] for name in row["ratios"]))
    lines = [
        "# Separable filters",
        "",
        "Written by `python benchmarks/separable.py`, which says how it measures. "
        f"{measured_on(document)}{others(document)} Filters have {document['terms']} term(s). "
        'Ratios above 1: `algorithm="separable"` is faster.',
        "",
        *table(
            ["image", "form", "taps", "time", *names, "error", "stated", "chosen"],
            [
                [
                    f"{row['side']}²",
                    row["form"],
                    f"{row['taps']}x{row['taps']}",
                    f"{row['us']:.0f} us",
                    *(f"{row['ratios'][n]:.2f}" if n in row["ratios"] else "" for n in names),
                    f"{row['error']:.1e}",
                    f"{row['stated']:.1e}",
                    row["chosen"],
                ]
                for row in document["rows"]
            ],
        ),
    ]
    return wrapped("\n".join(lines).rstrip())


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sides", nargs="*", type=positive, default=SIDES, help="of the image")
    parser.add_argument("--taps", nargs="+", type=positive, default=TAPS, help="along a side")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS), help="of images")
    parser.add_argument("--terms", type=positive, choices=(1, 2, 3), default=1)
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a turn")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    parser.set_defaults(threads=1)
    add_record_option(parser)
    options = parser.parse_args()
    document: Document = {"machine": machine.describe().to_json(), "effort": effort(options)}
    document |= {"busy_cpus_before": round(machine.busy_cpus(), 2), "terms": options.terms}
    document["rows"] = []
    for side, n, form in product(options.sides, options.taps, options.forms):
        row = measure(side, n, form, options)
        document["rows"].append(row)
        ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
        name = f"{n}x{n} on {side}, {form}"
        print(f"{name}: {row['us']:.0f} us; {ratios}; {row['chosen']}", flush=True)
    document["failures"] = failures(document)
    write_results(document, options.out, page)
    print(*document["failures"], sep="\n")
    return EXIT_NOT_MET if document["failures"] else 0


if __name__ == "__main__":
    script(main)
