"""Random problems of gradients by every method of dw and dx: whole numbers, float64, guard pages.

    python tests/conformance/gradients.py                   1,500 problems by each method
    python tests/conformance/gradients.py --methods call    by the functions that users call
    python tests/conformance/gradients.py --methods direct,winograd:m=4 --count 300 --seed 7
    python tests/conformance/gradients.py --methods x=mec,x=planar      of dx, by these algorithms
    python tests/conformance/gradients.py --only 7:123      one of them; --shrink makes it small
    TEST_MACHINE=haswell python tests/conformance/gradients.py      code of another processor

Problems are drawn as oneDNN's benchdnn names them: channels, groups, sizes, taps, strides,
dilations and paddings in one to three dimensions, and those that public reports name. Each is
computed with 1, 2 and 5 threads, from a format of x and one of dy that are drawn, too, dw full of
NaN before, all operands, temporaries and scratch between pages that nobody may touch, which begin
where each ends, or end where each begins. What crashes or hangs is named.

`call` is `conv2d_backward` and `conv_transpose2d_backward`, planned: the algorithms that are chosen
for dx and dw, layouts and needed gradients that are drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE.parents[1] / "src", HERE.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from support import machines  # noqa: E402  found by the lines above

machines.describe_host()

import pytest  # noqa: E402  what follows imports leanconv, which the line above describes

from conformance import run  # noqa: E402
from conformance.suite import OTHER, REFUSED, RIGHT, WRONG  # noqa: E402
from leanconv.algorithms import WEIGHT_GRADIENTS  # noqa: E402
from support import gradient_calls, gradient_draws, guard_pages, guarded_programs  # noqa: E402
from support.gradient_draws import Draw  # noqa: E402

CALL, DATA = "call", "x="
OF_DATA = [f"{DATA}{name}" for name in gradient_calls.OF_DATA]

_LIMIT_S = 60.0
_STEPS = 60  # problems that are tried to make one smaller


def outcome(method: str, found: Draw) -> tuple[str, str]:
    """What becomes of a problem by a method, and what is said of it."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            guarded_programs.install(patch, guard_pages.SIDES[found.seed % 2])
            if method == CALL:
                plan = gradient_calls.check_call(gradient_calls.Call.drawn(found))
                return RIGHT, ", ".join(map(str, plan.algorithms.values()))
            check = gradient_calls.check_data if method.startswith(DATA) else gradient_draws.check
            return (RIGHT if check(found, method.removeprefix(DATA)) else REFUSED), ""
        except AssertionError as error:
            return WRONG, str(error)
        except Exception as error:  # of any kind: that is what is looked for
            return OTHER, f"{type(error).__name__}: {error}"


def becomes(method: str, found: Draw) -> tuple[str, str]:
    """The same in a process of its own, which may crash."""
    answer = run.run_all(["it"], 1, _LIMIT_S, lambda _: outcome(method, found))
    return answer["it"]


def shrunk(method: str, found: Draw) -> Draw:
    """A smaller problem that fails too."""
    left = _STEPS
    while left > 0:
        for one in gradient_draws.smaller(found):
            left -= 1
            if becomes(method, one)[0] in (WRONG, OTHER):
                found = one
                break
            if left <= 0:
                break
        else:
            return found
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line says; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", default="", metavar="A,B:p=1", help="all by default")
    parser.add_argument("--count", type=int, default=1500, metavar="N", help="problems of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="NAME", help="one problem, such as 7:123")
    parser.add_argument("--shrink", action="store_true", help="make what fails smaller")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args(arguments)
    methods = given.methods.split(",") if given.methods else [*WEIGHT_GRADIENTS, *OF_DATA, CALL]
    draws = {each.name: each for each in gradient_draws.reported()}
    draws |= {each.name: each for each in gradient_draws.drawn(given.seed, given.count)}
    if given.only:
        draws = {given.only: draws.get(given.only) or named(given.only)}
    names = {f"{method} {name}": (method, name) for method in methods for name in draws}
    found = run.run_all(
        names,
        given.processes,
        _LIMIT_S,
        lambda name: outcome(names[name][0], draws[names[name][1]]),
    )
    bad = {name: each for name, each in found.items() if each[0] in (WRONG, OTHER)}
    for name, (what, text) in bad.items():
        method, one = names[name][0], draws[names[name][1]]
        print(f"{name}: {what}: {text[:600]}\n    {one.spec}", flush=True)
        if given.shrink:
            small = shrunk(method, one)
            print(f"    smaller: {small}\n    {becomes(method, small)}", flush=True)
    for method in methods:
        counts = Counter(found[name][0] for name, (m, _) in names.items() if m == method)
        print(f"{method}: {', '.join(f'{what} {number:,}' for what, number in counts.items())}")
    return int(bool(bad))


def named(text: str) -> Draw:
    """The problem of a name, SEED:NUMBER."""
    seed, number = map(int, text.split(":"))
    return gradient_draws.draw(seed, number)


if __name__ == "__main__":
    sys.exit(main())
