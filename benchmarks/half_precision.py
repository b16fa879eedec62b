"""Networks kept in half precision, against float32 and against OpenVINO's default.

    python benchmarks/half_precision.py --out half_precision.json
    python benchmarks/half_precision.py resnet50 --threads 1

`leanconv` is `precision="bfloat16"`; beside it `precision="float16"`, float32 (which asks for
nothing), onnxruntime in float32, and OpenVINO as it is by default, which computes in bfloat16 on
CPUs with matrix tiles for it. Weights are random, batch 1, two threads; each engine has a process
of its own, in turn. What the engines answer may differ by `--close`, a share of the largest output.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from harness import HERE, ROOT, model_file, script
from leanconv.cli.bench import add_measure_options, compare
from leanconv.cli.engines.processes import ENGINES as USUAL
from leanconv.cli.engines.processes import Engine
from leanconv.cli.engines.rounds import Work

CASES = ("mobilenetv2", "resnet50", "vgg16")
_IMAGE = (1, 3, 224, 224)
_FLOAT32, _ONNXRUNTIME, _OPENVINO, *_ = USUAL


def _variant(of: Engine, name: str, file: str) -> Engine:
    """An engine that is loaded in another way, by a file of `engines`."""
    return replace(of, name=name, file=HERE / "engines" / file, paths=(ROOT / "src",))


ENGINES = (
    _variant(_FLOAT32, "leanconv", "engine_bfloat16.py"),
    _variant(_FLOAT32, "float16", "engine_float16.py"),
    replace(_FLOAT32, name="float32"),
    _ONNXRUNTIME,
    _variant(_OPENVINO, "openvino", "engine_openvino_default.py"),
)


def works(names: list[str]) -> Iterator[Work]:
    """Yield every network with one image."""
    random = np.random.default_rng(0)
    for name in names:
        yield Work(name, model_file(name), {"input": random.standard_normal(_IMAGE, np.float32)})


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=CASES, help=f"default {' '.join(CASES)}")
    parser.add_argument("--close", type=float, default=0.2, help="(default: %(default)s)")
    add_measure_options(parser, threads=2)
    options = parser.parse_args()
    return compare(works(options.names), ENGINES, options, close=options.close)


if __name__ == "__main__":
    script(main)
