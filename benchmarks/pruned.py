"""Pruned layers and networks: what leaving out zeros gains.

    python benchmarks/pruned.py layers --record pruned
    python benchmarks/pruned.py layers "1x1 mobilenetv2" --zeros 90       one group, one share
    python benchmarks/pruned.py networks --python OTHER_PYTHON --record pruned_networks
    python benchmarks/pruned.py networks resnet50:90 --threads 2

`layers`: the 1x1 layers of MobileNetV2 and ResNet-50, the 3x3 layers of ResNet-50, fully
connected ones, and 1x1 layers of 4, 9 and 16 pixels, at batch 1, their smallest weights put to 0,
each by itself or four neighbouring outputs together. A pair is one turn of our plan for the weights
before, whatever it chooses, and one of `algorithm="sparse"`, in one thread, by its CPU time; who
begins changes. A ratio is the dense plan's time over the sparse one's; a row has the median of its
pairs, a group the geometric mean of its rows. The page says as well what is chosen where no
algorithm is named, and the bytes of ResNet-50 at 90 %.

`networks`: MobileNetV2 (all 1x1 layers) and ResNet-50 (all convolutions but the first), pruned
alike, against every engine; the zeros stand in dense initializers of one file for all. DeepSparse
1.8 takes part where OTHER_PYTHON (3.11 or older) has it: `pip install deepsparse==1.8.0 openvino`.

Exit code 3: a group is below what it must reach, `sparse` is chosen where it is slower, or answers
differ; of networks, also `--goal X`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

import leanconv as lc
from harness import (
    HERE,
    MODELS,
    Run,
    add_record_option,
    effort,
    model_file,
    script,
    turn,
    write_results,
)
from leanconv.cli import EXIT_NOT_MET
from leanconv.cli.bench import add_measure_options, compare
from leanconv.cli.engines import machine
from leanconv.cli.engines.processes import ENGINES, Engine
from leanconv.cli.engines.rounds import Work
from leanconv.cli.options import positive
from leanconv.errors import InputError
from pages.pruned import page

Document = dict[str, Any]
DEEPSPARSE = Engine(
    "deepsparse", HERE / "engines" / "engine_deepsparse.py", ("numpy", "deepsparse"), (HERE,)
)
NETWORKS = ("mobilenetv2:80", "mobilenetv2:90", "resnet50:80", "resnet50:90")
SHARES = (70, 80, 90, 95)  # percent
SINGLE, FOURS = "single weights", "four outputs"
PATTERNS = {SINGLE: 1, FOURS: 4}  # outputs whose weights are 0 together
# What the geometric mean of single weights must reach, by share.
MUST_1X1 = {70: 2.2, 80: 3.1, 90: 5.0, 95: 8.0}
MUST_3X3 = {90: 2.2, 95: 4.0}
MUST_FULLY_CONNECTED = {80: 1.1, 90: 2.1, 95: 3.5}
MOST_BYTES = 0.9  # of a weight of ResNet-50's convolutions at 90 %
_LEAST_INPUTS = 8  # of a layer that is pruned: first layers and depthwise ones have fewer
_TOLERANCE = 1e-5


class Layer(NamedTuple):
    """A convolution of square maps: their sides, channels, taps along a side, stride."""

    side: int
    inputs: int
    outputs: int
    taps: int = 1
    stride: int = 1

    def __str__(self) -> str:
        step = f" stride {self.stride}" if self.stride > 1 else ""
        return f"{self.inputs} to {self.outputs}, {self.side}x{self.side}{step}"


class Group(NamedTuple):
    """Layers with one number, and what it must reach at which share."""

    layers: tuple[Layer, ...]
    must: dict[int, float]


def _layers(text: str, taps: int = 1, stride: int = 1) -> tuple[Layer, ...]:
    sizes = (map(int, each.split(":")) for each in text.split())
    return tuple(Layer(side, ins, outs, taps, stride) for side, ins, outs in sizes)


GROUPS = {
    "1x1 mobilenetv2": Group(
        _layers(
            "112:32:16 112:16:96 56:96:24 56:24:144 28:144:32 28:32:192 14:192:64 14:64:384 "
            "14:384:64 14:384:96 14:96:576 14:576:96 7:576:160 7:160:960 7:960:160 7:960:320 "
            "7:320:1280"
        ),
        MUST_1X1,
    ),
    "1x1 resnet50": Group(
        _layers(
            "56:64:64 56:64:256 56:256:64 56:256:128 28:128:512 28:512:128 28:512:256 "
            "14:256:1024 14:1024:256 14:1024:512 7:512:2048 7:2048:512"
        ),
        MUST_1X1,
    ),
    "3x3 resnet50": Group(_layers("56:64:64 28:128:128 14:256:256 7:512:512", 3), MUST_3X3),
    "3x3 stride 2": Group(_layers("56:128:128 28:256:256 14:512:512", 3, 2), {}),
    "fully connected": Group(_layers("1:2048:1000 1:1280:1000 1:4096:4096"), MUST_FULLY_CONNECTED),
    "1x1 few pixels": Group(_layers("2:2048:512 2:512:512 3:1024:256 4:512:512"), {}),
}


def pruned(w: np.ndarray, share: float, together: int = 1) -> np.ndarray:
    """Weights (K, C/g, taps…) of which the smallest are 0.

    Args:
        w: the weights.
        share: of the weights that become 0.
        together: neighbouring outputs that keep or lose a weight together, by the sum of its
            absolute values.
    """
    size = np.abs(w.reshape(len(w) // together, together, *w.shape[1:])).sum(axis=1)
    kept = np.repeat(size > np.quantile(size, share), together, axis=0)
    return np.where(kept, w, w.dtype.type(0))


def aligned(shape: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Random float32 numbers from a cache line's start, where tensors of networks begin."""
    memory = random.standard_normal(int(np.prod(shape)) + 16, np.float32)
    start = -(memory.ctypes.data // 4) % 16
    return memory[start : start + memory.size - 16].reshape(shape)


def pairs(first: Run, second: Run, rounds: int, seconds: float) -> list[tuple[float, float]]:
    """The seconds of both in each round, by the CPU time of this thread."""
    found = []
    for number in range(rounds):
        order = (first, second) if number % 2 == 0 else (second, first)
        times = {run: turn(run, seconds, time.thread_time) for run in order}
        found.append((times[first], times[second]))
    return found


def measure(
    name: str, layer: Layer, shares: Sequence[int], options: argparse.Namespace
) -> Iterator[Document]:
    """A row for each share of zeros and each pattern of a layer of a group."""
    random = np.random.default_rng(0)
    w = random.standard_normal((layer.outputs, layer.inputs, layer.taps, layer.taps), np.float32)
    w /= np.sqrt(np.float32(w[0].size))
    x = aligned((1, layer.inputs, layer.side, layer.side), random)

    def planned(weights: np.ndarray, algorithm: str | None = None) -> Any:
        return lc.plan_conv2d(
            x.shape,
            weights,
            stride=layer.stride,
            padding=layer.taps // 2,
            algorithm=algorithm,
            threads=1,
        )

    dense = planned(w)
    y = aligned(dense(x).shape, random)
    for pattern, together in PATTERNS.items():
        for share in shares:
            less = pruned(w, share / 100, together)
            plan, exact = planned(less, "sparse"), planned(less, "direct")(x)
            error = float(np.abs(plan(x) - exact).max() / np.abs(exact).max())
            times = pairs(
                partial(dense, x, out=y),
                partial(plan, x, out=y),
                options.rounds,
                options.seconds,
            )
            yield {
                "group": name,
                "layer": str(layer),
                "pattern": pattern,
                "zeros": share,
                "dense": dense.algorithm,
                "chosen": planned(less).algorithm,
                "us": [1e6 * statistics.median(of) for of in zip(*times, strict=True)],
                "ratio": statistics.median(a / b for a, b in times),
                "weight_bytes": plan.weight_bytes,
                "weights": w.size,
                "error": error,
            }


def summary(rows: Sequence[Document]) -> list[Document]:
    """By group, pattern and share: mean, least, what must be reached, how often it is chosen."""
    found = []
    for name, group in GROUPS.items():
        for pattern in PATTERNS:
            for share in SHARES:
                key = (name, pattern, share)
                these = [r for r in rows if (r["group"], r["pattern"], r["zeros"]) == key]
                if not these:
                    continue
                taken = [row for row in these if row["chosen"] == "sparse"]
                found.append(
                    {
                        "group": name,
                        "pattern": pattern,
                        "zeros": share,
                        "layers": len(these),
                        "ratio": statistics.geometric_mean(row["ratio"] for row in these),
                        "least": min(row["ratio"] for row in these),
                        "must": group.must.get(share) if pattern == SINGLE else None,
                        "chosen": len(taken),
                        "least_chosen": min((row["ratio"] for row in taken), default=None),
                    }
                )
    return found


def failures(document: Document) -> list[str]:
    """Say what is below what it must be."""
    found = []
    for each in document["summary"]:
        name = f"{each['group']}, {each['pattern']}, {each['zeros']} %"
        if each["must"] and each["ratio"] < each["must"]:
            found.append(f"{name}: {each['ratio']:.2f}, must be {each['must']:g}")
        if each["least_chosen"] is not None and each["least_chosen"] < 1:
            found.append(f"{name}: sparse is chosen and {each['least_chosen']:.2f} times as fast")
    for row in document["rows"]:
        if not row["error"] <= _TOLERANCE:
            found.append(f"{row['group']} {row['layer']}: the error is {row['error']:.1e}")
    if (held := document["bytes"]) is not None:
        if held["sparse"] > held["most"] * held["weights"]:
            found.append(f"{held['sparse'] / held['weights']:.2f} bytes of a weight")
        if held["sparse_used"] != held["sparse_planned"]:
            found.append(f"{held['sparse_used']} bytes are used, {held['sparse_planned']} planned")
    return found


def pruned_file(name: str, share: int) -> Path:
    """A network of `examples/networks` with pruned convolutions, in `models`.

    Args:
        name: of the network; of `mobilenetv2` only 1x1 layers can be pruned, of others all but
            those of few inputs.
        share: percent of their weights that are 0.
    """
    file = MODELS / f"{name}_{share}_zeros.onnx"
    if not file.exists():
        model = onnx.load(model_file(name))
        weights = {each.name: each for each in model.graph.initializer}
        for node in model.graph.node:
            if node.op_type != "Conv":
                continue
            w = numpy_helper.to_array(weights[node.input[1]])
            if w.shape[1] >= _LEAST_INPUTS:
                less = numpy_helper.from_array(pruned(w, share / 100), node.input[1])
                weights[node.input[1]].CopyFrom(less)
        onnx.save(model, file)
    return file


def convolution_bytes(name: str = "resnet50", share: int = 90) -> Document:
    """Packed bytes of a pruned network's convolutions, and of the network as planned and used."""
    x = np.zeros((1, 3, 224, 224), np.float32)
    graph = onnx.load(model_file(name)).graph
    nodes = {node.name: node for node in graph.node if node.op_type == "Conv"}
    sizes = {each.name: int(np.prod(each.dims)) for each in graph.initializer}
    weights = sum(sizes[node.input[1]] for node in nodes.values())
    found: Document = {"network": name, "zeros": share, "weights": weights, "most": MOST_BYTES}
    for key, file in (("dense", model_file(name)), ("sparse", pruned_file(name, share))):
        network = lc.load(str(file), threads=1)
        network(x)
        layers = network.report(front=False)["layers"]
        found[key] = sum(each["weight_bytes"] for each in layers if each["name"] in nodes)
        found[f"{key}_planned"] = network.plan.memory_bytes
        found[f"{key}_used"] = network.used_bytes
    return found


def works(cases: Sequence[str]) -> Iterator[Work]:
    """Yield every `NAME:PERCENT` as a network with its input."""
    for case in cases:
        name, _, share = case.partition(":")
        if not (share.isdigit() and int(share) < 100):
            raise InputError(f"{case!r} is no network and percent; expected such as resnet50:90")
        x = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
        yield Work(f"{name}, {share} % zeros", pruned_file(name, int(share)), {"input": x})


def measure_layers(options: argparse.Namespace) -> int:
    """Measure groups of layers."""
    unknown = sorted(set(options.groups) - GROUPS.keys())
    if unknown:
        raise InputError(f"groups {unknown} are not known; expected {', '.join(GROUPS)}")
    document: Document = {"machine": machine.describe().to_json(), "effort": effort(options)}
    document |= {"busy_cpus_before": round(machine.busy_cpus(), 2), "rows": []}
    for name in options.groups or GROUPS:
        for layer in GROUPS[name].layers:
            for row in measure(name, layer, options.zeros or SHARES, options):
                document["rows"].append(row)
                print(line(row), flush=True)
    document["summary"] = summary(document["rows"])
    document["bytes"] = convolution_bytes() if options.out else None
    document["failures"] = failures(document)
    for each in document["summary"]:
        must = f", must {each['must']:g}" if each["must"] else ""
        print(
            f"{each['group']}, {each['pattern']}, {each['zeros']} %: {each['ratio']:.2f}{must}; "
            f"least {each['least']:.2f}; chosen in {each['chosen']} of {each['layers']}"
        )
    write_results(document, options.out, page)
    print(*document["failures"], sep="\n")
    return EXIT_NOT_MET if document["failures"] else 0


def line(row: Document) -> str:
    """A row for people."""
    dense, sparse = row["us"]
    return (
        f"{row['ratio']:6.2f}  {row['group']:16} {row['layer']:30} {row['zeros']} % "
        f"{row['pattern']:14} {row['dense']:9} {dense:7.1f} us, sparse {sparse:7.1f}, "
        f"{row['chosen']} is chosen"
    )


def main() -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    layers = kinds.add_parser("layers", help="our sparse plans beside our dense ones")
    layers.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    layers.add_argument(
        "--zeros", type=int, choices=SHARES, action="append", help="percent (repeatable)"
    )
    layers.add_argument("--rounds", type=positive, default=9)
    layers.add_argument("--seconds", type=float, default=0.02, help="of a turn")
    layers.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to this file")
    layers.set_defaults(threads=1)
    networks = kinds.add_parser("networks", help="pruned networks beside other engines")
    networks.add_argument(
        "cases", nargs="*", default=NETWORKS, metavar="NAME:PERCENT", help=" ".join(NETWORKS)
    )
    add_measure_options(networks, threads=1)
    for each in (layers, networks):
        add_record_option(each)
    options = parser.parse_args()
    if options.kind == "layers":
        return measure_layers(options)
    return compare(works(options.cases), (*ENGINES, DEEPSPARSE), options)


if __name__ == "__main__":
    script(main)
