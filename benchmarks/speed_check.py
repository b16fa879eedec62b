"""A minute's look at whether something has become much slower; exit code 3 if so.

    python benchmarks/speed_check.py              compare with what is recorded
    python benchmarks/speed_check.py --write      record what is measured now, the least of both
    TEST_MACHINE=haswell PYTHONPATH=tests/support/startup python benchmarks/speed_check.py --write
                                                  the same as if this processor had AVX2 alone

Each case runs on one thread, in turn with a loop of multiply-adds on registers: its number is the
share of that loop's rate that it reaches, the best of some turns, so that a slow or a busy machine
slows down both. Recorded are shares by instruction set, the least of the machines seen, with these
machines. A share below that over `MARGIN` is measured again; what stays below three times is
reported. Machines whose caches differ stay far inside the margin; work that is done twice, or not
in vectors, does not.

On an instruction set that has no record nothing can fail: shares are shown beside the least of the
others', what is far below them is named, and `--write` makes the record, which is to be committed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import leanconv as lc
from harness import HERE, ROOT, script
from leanconv.cli.engines import machine
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
    return max(1, least)  # clocks tick in more than a nanosecond


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


@dataclass(frozen=True)
class Record:
    """What is recorded of one instruction set.

    Attributes:
        shares: by case, the least of all machines.
        machines: CPU, day and commit of each time it was recorded.
    """

    shares: dict[str, float]
    machines: tuple[str, ...] = ()

    def lowered(self, found: dict[str, float], where: str) -> Record:
        """The record with what another machine has reached; cases that are no more are dropped."""
        least = {name: min(now, self.shares.get(name, now)) for name, now in found.items()}
        shares = {name: round(share, 3) for name, share in least.items()}
        return Record(shares, tuple(dict.fromkeys([*self.machines, where])))


def read(file: Path) -> dict[str, Record]:
    """What is recorded, by instruction set."""
    if not file.exists():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    return {isa: Record(one["shares"], tuple(one["machines"])) for isa, one in found.items()}


def write(file: Path, records: dict[str, Record]) -> None:
    """Keep what is recorded."""
    text = json.dumps({isa: asdict(one) for isa, one in records.items()}, indent=1, sort_keys=True)
    file.write_text(text + "\n", encoding="utf-8")


def of_others(records: dict[str, Record]) -> dict[str, float]:
    """By case the least share of all instruction sets."""
    least: dict[str, float] = {}
    for record in records.values():
        for name, share in record.shares.items():
            least[name] = min(share, least.get(name, share))
    return least


def this_machine() -> str:
    """CPU, day and commit."""
    here = machine.describe()
    return f"{here.cpu}, {here.time_utc[:10]}, commit {here.commit or 'unknown'}"


def main() -> int:
    """Measure, and compare or record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="record what is measured")
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE")
    options = parser.parse_args()
    records, isa = read(options.record), host().isa
    known = records.get(isa)
    compared = known.shares if known else of_others(records)
    found = measured({} if options.write else compared)
    rows = [
        [name, f"{100 * now:.0f} %", f"{100 * compared[name]:.0f} %" if name in compared else "-"]
        for name, now in found.items()
    ]
    heads = ["", "share of peak", "recorded" if known else "least of other instruction sets"]
    print_table(heads, rows, title=f"{isa}, one thread")
    if options.write:
        write(options.record, records | {isa: (known or Record({})).lowered(found, this_machine())})
        print(f"recorded in {options.record}; commit it")
        return 0
    late = slower(found, compared)
    if known is None:
        print(f"nothing is recorded for {isa}, so nothing can fail here; record it with --write")
    else:
        print(f"recorded on {'; '.join(known.machines)}")
    for name in late:
        print(f"{name}: {MARGIN} times slower than recorded, {ATTEMPTS} times in a row")
    return 3 if late and known else 0


if __name__ == "__main__":
    script(main)
