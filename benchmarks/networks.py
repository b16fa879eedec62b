"""Whole networks against every engine: MobileNetV2-1.0/224 at batch 1 and 8, ResNet-50 at batch 1.

    python benchmarks/networks.py --python TORCH_PYTHON --record networks

float32, two threads, random weights; each engine in a process of its own, in turn, the same
ONNX file for all. Answers must agree to 1e-3. Exit code 3 if they do not, or with `--goal X` if
the fastest other engine's time over ours is below X anywhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

from harness import ALL_ENGINES, add_record_option, model_file, script
from leanconv.cli.bench import add_measure_options, compare
from leanconv.cli.engines.rounds import Work

CASES = ("mobilenetv2:1", "mobilenetv2:8", "resnet50:1")
IMAGE = (3, 224, 224)


def works(cases: list[str]) -> Iterator[Work]:
    """Yield every `NAME:BATCH` as a network with its input."""
    for case in cases:
        name, _, batch = case.partition(":")
        file = model_file(name)
        x = np.random.default_rng(0).standard_normal((int(batch or 1), *IMAGE), dtype=np.float32)
        yield Work(f"{name} batch {batch or 1}", file, {"input": x})


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "cases",
        nargs="*",
        default=CASES,
        metavar="NAME:BATCH",
        help=f"default {' '.join(CASES)}; also resnet101:1, vgg16:1, …",
    )
    add_measure_options(parser, threads=2)
    add_record_option(parser)
    options = parser.parse_args()
    return compare(works(options.cases), ALL_ENGINES, options)


if __name__ == "__main__":
    script(main)
