"""Single convolutions of 8-bit integers, codes in and codes out, against every engine.

    python benchmarks/quantised_layers.py --python OTHER_PYTHON --out quantised_layers.json
    python benchmarks/quantised_layers.py cv9 cv10 --threads 1

cv1 to cv12 of the MEC paper as QDQ files, y = Quantize(Relu(Conv(Dequantize(x), w))) with weights
of a scale for each channel: the same file for all engines, each in a process of its own, in turn;
NCHW in and out. ncnn reads no such file and is given the same numbers in its own format. Codes
are 0 to 127 with zero points of 0, which are the same in ncnn's int8 as in the others' uint8.

Answers are compared with onnxruntime's: leanconv's are equal, others may be a few codes apart since
they round otherwise (ncnn: three codes in one of 1.5 million outputs of cv8). Exit code 3 if any
differs by more, or with `--goal X` if the best of the others over ours is below X anywhere.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from harness import ALL_ENGINES, HERE, add_record_option, script
from layers import paper_specs
from leanconv.cli.bench import add_measure_options, compare
from leanconv.cli.engines.processes import Engine
from leanconv.cli.engines.rounds import Work
from leanconv.spec import ConvSpec
from leanconv.types import FLOAT32

NCNN = Engine("ncnn", HERE / "engines" / "engine_ncnn_codes.py", ("ncnn", "onnx"), (HERE,))
ENGINES = (*(e for e in ALL_ENGINES if e.name in ("leanconv", "onnxruntime", "openvino")), NCNN)
LARGEST = 127  # code of x and of y
_SPREAD = 30.0  # standard deviation of codes of weights
_CLOSE = 4 / LARGEST


def works(specs: dict[str, ConvSpec], folder: Path) -> Iterator[Work]:
    """Yield every layer; its file is removed when the next one is requested."""
    for name, spec in specs.items():
        random = np.random.default_rng(0)
        file = folder / "layer.onnx"
        onnx.save(layer_model(spec, random), file)
        x = random.integers(0, LARGEST + 1, spec.input_shape, np.uint8)
        yield Work(f"{name} {spec}", file, {"x": x})
        file.unlink()


def layer_model(spec: ConvSpec, random: np.random.Generator) -> onnx.ModelProto:
    """One convolution with Relu between codes; the largest of y is near 127 and few lie beyond."""
    codes = np.rint(random.normal(0, _SPREAD, spec.weight_shape)).clip(-LARGEST, LARGEST)
    scales = random.uniform(0.5, 1.5, spec.out_channels).astype(np.float32) / LARGEST
    terms = np.prod(spec.weight_shape[1:])
    # Of sums of products of codes, uniform and normal, six standard deviations.
    reach = 6 * np.sqrt(terms / 3) * LARGEST * _SPREAD * float(scales.mean())
    constants = {
        "x_scale": np.float32(1 / LARGEST),
        "x_zero": np.uint8(0),
        "w": codes.astype(np.int8),
        "w_scale": scales,
        "w_zero": np.zeros(spec.out_channels, np.int8),
        "y_scale": np.float32(reach / LARGEST**2),
        "y_zero": np.uint8(0),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["x_real"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_real"], axis=0),
        helper.make_node(
            "Conv",
            ["x_real", "w_real"],
            ["sums"],
            kernel_shape=spec.kernel,
            strides=spec.stride,
            dilations=spec.dilation,
            pads=spec.pad_begin + spec.pad_end,
            group=spec.groups,
        ),
        helper.make_node("Relu", ["sums"], ["positive"]),
        helper.make_node("QuantizeLinear", ["positive", "y_scale", "y_zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        str(spec),
        [helper.make_tensor_value_info("x", TensorProto.UINT8, spec.input_shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, spec.output_shape)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="*", metavar="LAYER", help="cv1 … (default: all twelve)")
    add_measure_options(parser, threads=2)
    add_record_option(parser)
    parser.set_defaults(processes=1, rounds=5, seconds=0.4, warmup=0.2)
    options = parser.parse_args()
    specs = paper_specs(options.layers, 1, FLOAT32)
    with tempfile.TemporaryDirectory(prefix="leanconv-layers-") as folder:
        return compare(works(specs, Path(folder)), ENGINES, options, close=_CLOSE)


if __name__ == "__main__":
    script(main)
