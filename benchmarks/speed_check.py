"""A minute's look at whether something has become much slower; exit code 3 if so.

    python benchmarks/speed_check.py              compare with what is recorded
    python benchmarks/speed_check.py --write      record what is measured now

Each case runs on one thread, in turn with a loop of multiply-adds on registers: its number is the
share of that loop's rate that it reaches, the best of some turns, so that a slow or a busy machine
slows down both. Recorded are shares by instruction set, the least of the machines seen. A share
below that over `MARGIN` is measured again; what stays below three times is reported. Machines whose
caches differ stay far inside the margin; work that is done twice, or not in vectors, does not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

import leanconv as lc
from harness import HERE, ROOT, script
from leanconv.cli.output import print_table
from leanconv.codegen.host import host
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32
from microkernel import Peak, Work, aligned, work

RECORD = HERE / "speed_check.json"
MARGIN = 2.5
ATTEMPTS = 3
TURN_S = 0.05
TURNS = 5
# Single convolutions by what is chosen: name, problem.
CONVOLUTIONS = {
    "cv5": LAYERS["cv5"],
    "cv7": LAYERS["cv7"],
    "cv9": LAYERS["cv9"],
    "cv12": LAYERS["cv12"],
    "1x1": "ic256ih14oc1024oh14kh1",
    "depthwise": "g96ic96ih56oc96oh56kh3ph1",
}
ALGORITHMS = {
    "direct": "direct",
    "im2win": "im2win",
    "mec": "mec",
    "fft": "fft:tile=16",
    "winograd": "winograd:m=4",
}
Run = Callable[[], object]


def cases() -> Iterator[tuple[str, float, Run]]:
    """Name, operations of the plain sum, and what runs the case once."""
    rng = np.random.default_rng(0)
    named: list[tuple[str, str, str | None]]
    named = [(name, text, None) for name, text in CONVOLUTIONS.items()]
    named += [(f"cv9 by {name}", LAYERS["cv9"], text) for name, text in ALGORITHMS.items()]
    for name, text, algorithm in named:
        spec = ConvSpec.parse(text)
        x = rng.standard_normal(spec.input_shape, np.float32)
        w = rng.standard_normal(spec.weight_shape, np.float32)
        plan = lc.plan_conv2d(
            x.shape,
            w,
            stride=spec.stride,
            padding=spec.pad_begin,
            groups=spec.groups,
            algorithm=algorithm,
            threads=1,
        )
        y = np.empty(spec.output_shape, np.float32)
        yield name, spec.flops, partial(plan, x, out=y)
    network = lc.load(ROOT / "examples" / "digits" / "digits.onnx", threads=1)
    images = rng.standard_normal((16, 1, 32, 32), np.float32)
    network(images)
    flops = 2e6 * len(images)  # a unit of time: the network's own operations do not matter
    yield "digits.onnx", flops, lambda: network(images)


def best_ns(run: Run) -> int:
    """The least time of a run, over one turn."""
    least, end = 1 << 62, time.perf_counter() + TURN_S
    while time.perf_counter() < end:
        begin = time.perf_counter_ns()
        run()
        least = min(least, time.perf_counter_ns() - begin)
    return least


def share(flops: float, run: Run, peak: Work) -> float:
    """The share of the peak that a case reaches, the best of its turns."""
    found = 0.0
    for _ in range(TURNS):
        rate = peak.rate(TURN_S / 4)
        found = max(found, flops / best_ns(run) * 1e9 / rate)
    return found


def peak_loop() -> Work:
    """Independent multiply-adds on registers, on this thread."""
    lanes, registers = host().lanes(FLOAT32), host().registers
    accumulators = min(24, registers - 4)
    kernel = Peak(lanes, accumulators)
    return work("peak", kernel, aligned(2 * lanes), aligned(accumulators * lanes))


def measured(recorded: dict[str, float]) -> dict[str, float]:
    """The share of each case; of one that is slow, the best of all attempts."""
    peak, found = peak_loop(), dict[str, float]()
    for name, flops, run in cases():
        run()
        for _ in range(ATTEMPTS):
            found[name] = max(found.get(name, 0.0), share(flops, run, peak))
            if found[name] * MARGIN >= recorded.get(name, 0.0):
                break
    return found


def slower(found: dict[str, float], recorded: dict[str, float]) -> list[str]:
    """The cases that have become slower by more than the margin."""
    return [name for name, was in recorded.items() if found.get(name, was) * MARGIN < was]


def read(file: Path) -> dict[str, dict[str, float]]:
    """The recorded shares, by instruction set and case."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def main() -> int:
    """Measure, and compare or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="record what is measured")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE")
    options = parser.parse_args()
    everything = read(options.record)
    recorded = {} if options.write else everything.get(host().isa, {})
    found = measured(recorded)
    late = slower(found, recorded)
    rows = [
        [name, f"{100 * now:.0f} %", f"{100 * recorded[name]:.0f} %" if name in recorded else "-"]
        for name, now in found.items()
    ]
    print_table(["", "share of peak", "recorded"], rows, title=f"{host().isa}, one thread")
    if options.write:
        before = everything.get(host().isa, {})
        least = {name: min(now, before.get(name, now)) for name, now in found.items()}
        everything[host().isa] = {name: round(value, 3) for name, value in least.items()}
        text = json.dumps(everything, indent=1, sort_keys=True) + "\n"
        options.record.write_text(text, encoding="utf-8")
        return 0
    if not recorded:
        print(f"nothing is recorded for {host().isa}: nothing was compared")
    for name in late:
        print(f"{name}: {MARGIN} times slower than recorded, {ATTEMPTS} times in a row")
    return 3 if late else 0


if __name__ == "__main__":
    script(main)
