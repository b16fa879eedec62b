"""Single convolutions against every engine, leanconv through `plan_conv2d` called from Python.

    python benchmarks/layers.py --python TORCH_PYTHON --record layers
    python benchmarks/layers.py --batch 8 --python TORCH_PYTHON             eight images at once
    python benchmarks/layers.py --dtype float64 --python TORCH_PYTHON         against torch alone
    python benchmarks/layers.py --max-error 3e-6 --python TORCH_PYTHON        as accurate as others
    python benchmarks/layers.py --shapes networks --python TORCH_PYTHON       `layer_shapes.py`

cv1 to cv12 of the MEC paper, or 200 layers of well-known networks; two threads, NCHW in and out,
the cost of the call included. Each layer is an ONNX file of one node; errors are against float64.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from engines.engine_plan import MAX_ERROR
from harness import LAYER_ENGINES, add_record_option, script
from layer_shapes import SHAPES
from leanconv.cli.bench import add_measure_options, compare, layer_works
from leanconv.cli.options import positive
from leanconv.errors import InputError
from leanconv.reference.layers import LAYERS
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32, FLOAT64, DType

_DOUBLES = ("leanconv", "torch", "torch-nhwc")  # who computes in float64
_STRIDE = 8  # shapes are taken in so many passes over the list, quickly in one


def paper_specs(names: list[str], batch: int, dtype: DType) -> dict[str, ConvSpec]:
    """Return cv1 to cv12, or those that are named.

    Raises:
        InputError: a name is none of them.
    """
    unknown = sorted(set(names) - LAYERS.keys())
    if unknown:
        raise InputError(f"layers {unknown} are not known; expected {', '.join(LAYERS)}")
    return {n: ConvSpec.parse(LAYERS[n], batch=batch, dtype=dtype) for n in names or LAYERS}


def network_specs(names: list[str], batch: int, quick: bool) -> dict[str, ConvSpec]:
    """Return the layers of networks, or those whose name has one of the parts that are given.

    Raises:
        InputError: no layer has.
    """
    chosen = [s for s in SHAPES if not names or any(part in s.name for part in names)]
    if not chosen:
        raise InputError(
            f"no layer's name has {' or '.join(names)}; see benchmarks/layer_shapes.py"
        )
    passes = range(1 if quick else _STRIDE)
    return {s.name: s.spec(batch) for first in passes for s in chosen[first::_STRIDE]}


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="cv1 …, or parts of names")
    parser.add_argument("--shapes", choices=("paper", "networks"), default="paper")
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="images at once")
    parser.add_argument("--dtype", choices=(FLOAT32, FLOAT64), default=FLOAT32)
    parser.add_argument("--quick", action="store_true", help="one process, fewer network layers")
    parser.add_argument("--max-error", type=float, metavar="E", help="that leanconv may state")
    add_measure_options(parser, threads=2)
    add_record_option(parser)
    networks = parser.parse_known_args()[0].shapes == "networks"
    parser.set_defaults(processes=2, rounds=3, seconds=0.3)
    if networks:
        parser.set_defaults(seconds=0.08, warmup=0.04)
    options = parser.parse_args()
    if networks:
        options.processes = 1  # takes all layers: to start one anew for each would take hours
        options.minutes = options.minutes or (5.0 if options.quick else 30.0)
        specs = network_specs(options.layers, options.batch, options.quick)
    else:
        specs = paper_specs(options.layers, options.batch, options.dtype)
    if options.quick:
        options.processes, options.rounds = 1, 2
    if options.max_error is not None:
        os.environ[MAX_ERROR] = repr(options.max_error)  # the engines' processes have it, too
    engines = [e for e in LAYER_ENGINES if options.dtype == FLOAT32 or e.name in _DOUBLES]
    with tempfile.TemporaryDirectory(prefix="leanconv-layers-") as folder:
        works = layer_works(specs, Path(folder), exact=True)
        return compare(works, engines, options, keep=networks or options.quick)


if __name__ == "__main__":
    script(main)
