"""Networks of 8-bit integers against every engine, and against themselves in float32.

    python benchmarks/quantised.py --record quantised
    python benchmarks/quantised.py vgg16 --threads 1

Each network has random weights, is quantised once by `leanconv.quantize` on random images, and the
same QDQ file is given to all engines, each in a process of its own, in turn; batch 1, two threads.
What the engines answer may differ as far as they round differently inside (`--close`, a share of
the largest output; random weights make little of much). Exit code 3 if it differs by more, or with
`--goal X` if the fastest other engine's time over ours is below X anywhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import leanconv
from harness import ALL_ENGINES, MODELS, add_record_option, model_file, script
from leanconv.cli.bench import add_measure_options, compare
from leanconv.cli.engines.rounds import Work

CASES = ("mobilenetv2", "resnet50", "vgg16")
IMAGE = (3, 224, 224)
_SAMPLES = 4  # calibrate; of random weights nobody asks for accuracy


def works(names: list[str]) -> Iterator[Work]:
    """Yield every network in float32, and quantised."""
    random = np.random.default_rng(0)
    for name in names:
        file = model_file(name)
        x = random.standard_normal((1, *IMAGE), dtype=np.float32)
        yield Work(f"{name} float32", file, {"input": x})
        yield Work(f"{name} int8", quantised_file(file, random), {"input": x})


def quantised_file(file: Path, random: np.random.Generator) -> Path:
    """Return `models/NAME_int8.onnx`, which is made if it is not there."""
    made = MODELS / f"{file.stem}_int8.onnx"
    if not made.exists():
        images = random.standard_normal((_SAMPLES, 1, *IMAGE), dtype=np.float32)
        samples = [{"input": image} for image in images]
        leanconv.quantize(file, samples, ranges="min-max", rounding=False).save(made)
    return made


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=CASES, help=f"default {' '.join(CASES)}")
    parser.add_argument("--close", type=float, default=0.2, help="(default: %(default)s)")
    add_measure_options(parser, threads=2)
    add_record_option(parser)
    options = parser.parse_args()
    return compare(works(options.names), ALL_ENGINES, options, close=options.close)


if __name__ == "__main__":
    script(main)
