"""Single convolutions against every engine: cv1 to cv12 of the MEC paper at batch 1 and 8.

    python benchmarks/layers.py --python TORCH_PYTHON --out layers.json

float32, two threads, NCHW in and out; each layer is an ONNX file of one node.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from harness import ALL_ENGINES, script
from leanconv.cli.bench import LAYERS, layer_works
from leanconv.cli.common import positive
from leanconv.cli.engines.report import add_measure_options, compare
from leanconv.errors import InputError


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="cv1 to cv12 (default: all)")
    parser.add_argument("--batch", action="append", type=positive, metavar="N", help="repeatable")
    add_measure_options(parser)
    parser.set_defaults(processes=2, rounds=3, seconds=0.3)
    options = parser.parse_args()
    unknown = sorted(set(options.layers) - LAYERS.keys())
    if unknown:
        raise InputError(f"layers {unknown} are not known; expected {', '.join(LAYERS)}")
    problems = {name: LAYERS[name] for name in options.layers or LAYERS}
    with tempfile.TemporaryDirectory(prefix="leanconv-layers-") as folder:
        works = layer_works(problems, options.batch or [1, 8], Path(folder))
        return compare(works, ALL_ENGINES, options)


if __name__ == "__main__":
    script(main)
