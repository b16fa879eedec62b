"""`leanconv warm [MODEL…] [--usual]`: compile ahead, into the cache folder, what networks need."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from leanconv.api.inputs import given_values
from leanconv.cli import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.network_inputs import given_shapes, input_shapes, model_file, shape_groups
from leanconv.cli.options import (
    Extents,
    UsageError,
    add_load_options,
    add_output_options,
    add_value_option,
    load_options,
    named_range,
    positive,
)
from leanconv.cli.output import print_json, print_table, print_text, progress
from leanconv.cli.table import Column
from leanconv.errors import InputError
from leanconv.graph.file_graph import FileNode
from leanconv.graph.limits import Limits
from leanconv.graph.onnx_file import ModelInput
from leanconv.graph.onnx_import import Model
from leanconv.records import dataclass, field
from leanconv.settings import current_settings
from leanconv.types import FLOAT32
from leanconv.units import format_bytes

if TYPE_CHECKING:
    from leanconv.api.network import Network
    from leanconv.progress import Progress

_COLUMNS = (
    Column("network", "name"),
    Column("inputs", "name"),
    Column("sizes", "name"),
    Column("forms"),
    Column("compiled"),
)
HELP = "compile ahead what networks need"
# The usual networks: constants are one number repeated, as what is compiled depends on shapes only.
# Deeper networks of the same blocks, such as ResNet-34 and ResNet-101, have the same forms.
_OPSET, _CLASSES = 17, 1000
_IMAGE = ("N", 3, 224, 224)
_Bottlenecks = tuple[tuple[int, int, int, int], ...]
# Expansion, channels, blocks, stride of the first: Sandler et al. 2018 (arXiv 1801.04381), table 2.
_MOBILENET_V2: _Bottlenecks = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class Warmed(NamedTuple):
    """A network for shapes, or ranges, of its inputs, and for values of those that decide what
    is computed: how many forms its kernels have and had to be compiled.

    Sizes are `"open"` where other shapes may come, else `"fixed"`.
    """

    network: str
    inputs: dict[str, Extents]
    values: Mapping[str, list[int] | int]
    sizes: str
    forms: int
    compiled: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument("models", metavar="MODEL", nargs="*", help="ONNX files")
    parser.add_argument(
        "--usual", action="store_true", help=f"also for networks such as {', '.join(USUAL)}"
    )
    add_load_options(parser)
    add_load_options(parser, ["shared_weights"])
    parser.add_argument(
        "--shape",
        action="append",
        type=named_range,
        default=[],
        metavar="[NAME=]NxCxHxW",
        help="input shape, where the model leaves it open (a batch left open is 1), or a range, "
        "such as 1x3x48x32-2304 or, in steps, 1x3x640x32-960/32: all that its shapes need",
    )
    add_value_option(parser)
    parser.add_argument(
        "--batch", type=positive, metavar="N", help="where a model leaves it open (default 1)"
    )
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    if not (options.models or options.usual):
        raise UsageError("warm: got neither a MODEL nor --usual; expected one of them, or both")
    of_models = options.shape or options.value or options.algorithms
    if options.usual and not options.models and of_models:
        raise UsageError("--shape, --value and --algorithm go with a MODEL")
    settings = current_settings()
    if not settings.cache_bytes:
        raise InputError("LEANCONV_CACHE_BYTES is 0: nothing would be kept; unset it, or give more")
    rows = list(_warmed(options))
    folder, held = settings.cache_dir, _bytes_below(settings.cache_dir)
    compiled = sum(row.compiled for row in rows)
    if options.json:
        networks = [row._asdict() for row in rows]
        report = {"networks": networks, "compiled": compiled, "cache_dir": str(folder)}
        print_json({**report, "cache_bytes": held})
    else:
        print_table(_COLUMNS, [_cells(row) for row in rows], wide=options.wide)
        print_text(f"\n{compiled} forms compiled; the cache has {format_bytes(held)}", options.wide)
        print_text(
            f"to use it elsewhere: copy {folder} to a machine with the same kind of processor, "
            "versions of leanconv, Python, NumPy and llvmlite, modes kept (cp -a, tar -p), and set "
            "LEANCONV_CACHE_DIR to the copy\n"
            "where root has filled it, as for a container, other users run from it after "
            f"chmod -R a+rX {folder}",
            options.wide,
        )
    return EXIT_OK if held else EXIT_NOT_MET


def _warmed(options: argparse.Namespace) -> Iterator[Warmed]:
    groups = shape_groups(options.shape)
    ranges = [group for group in groups if any(map(_is_range, group))]
    shapes = [group for group in groups if group not in ranges]
    for model in [model_file(model, "warm") for model in options.models]:
        load = partial(_loaded, model, options)
        if shapes:
            yield from _bound(model, load, options, shapes)
        for group in ranges:
            yield _ahead(model, load, group, options.value)
    for name in USUAL if options.usual else ():
        yield from _bound(name, partial(_usual, name, options), options, [[]])


def _loaded(
    model: str,
    options: argparse.Namespace,
    told: Progress,
    shapes: Mapping[str, Extents] | None = None,
) -> Network:
    import leanconv

    return leanconv.load(model, **load_options(options), progress=told, shapes=shapes)


def _usual(name: str, options: argparse.Namespace, _: Progress) -> Network:
    from leanconv.api.cpu_backend import CpuBackend
    from leanconv.api.network import Network
    from leanconv.api.options import NetworkOptions

    given = NetworkOptions.checked(
        **{**load_options(options), "algorithms": None, "shared_weights": False}
    )
    return Network(CpuBackend(usual_network(name), given), name)


def _bound(
    name: str,
    load: Callable[[Progress], Network],
    options: argparse.Namespace,
    groups: Sequence[Sequence[tuple[str, Any]]],
) -> Iterator[Warmed]:
    from leanconv.api.planned_call import PlannedCall

    with progress(f"loading {name}") as shown:
        told = _teller(name, shown)
        network = load(told)
        for shapes in groups:
            values = given_values(network.inputs, options.value)
            inputs = input_shapes(network, shapes, options.batch, values)
            for sizes, each in _planned(network, inputs, values, told, stated=bool(shapes)):
                made = each.compiled
                assert isinstance(made, PlannedCall), f"{name} is not compiled for the CPU"
                counts = made.network.forms, made.network.compiled_forms
                yield Warmed(name, *_described(inputs, values), sizes, *counts)


def _planned(
    network: Network,
    inputs: Mapping[str, Any],
    values: Mapping[str, np.ndarray],
    told: Progress,
    stated: bool,
) -> Iterator[tuple[str, Network]]:
    """The network for input shapes: as it is loaded and called, and as `--shape` plans it."""
    fixed = all(spec.shape == inputs[spec.name] for spec in network.inputs)
    if fixed or all(spec.takes(inputs[spec.name]) for spec in network.inputs):
        network.bind({**inputs, **values}, progress=told)
        yield "fixed" if fixed else "open", network
    if stated and not fixed:
        alone = network.specialise(inputs, told)
        alone.bind({**inputs, **values}, progress=told)
        yield "fixed", alone


def _ahead(
    name: str,
    load: Callable[..., Network],
    given: Sequence[tuple[str, Extents]],
    value: Sequence[tuple[str, tuple[int, ...]]],
) -> Warmed:
    from leanconv.api.cpu_backend import CpuBackend

    with progress(f"loading {name}") as shown:
        told = _teller(name, shown)
        network = load(told)
        ranges, values = given_shapes(network, given), given_values(network.inputs, value)
        backend = load(told, {**ranges, **values}).backend
        assert isinstance(backend, CpuBackend), f"{name} is not compiled for the CPU"
        counts = backend.ahead.forms, backend.ahead.compiled
        return Warmed(name, *_described(ranges, values), "open", *counts)


def _described(
    inputs: Mapping[str, Extents], values: Mapping[str, np.ndarray]
) -> tuple[dict[str, Extents], dict[str, Any]]:
    """Return the shapes and the values for which a network was compiled."""
    shapes = {name: shape for name, shape in inputs.items() if name not in values}
    return shapes, {name: array.tolist() for name, array in values.items()}


def _teller(name: str, shown: Any) -> Progress:
    def told(stage: str, done: int, total: int) -> None:
        shown.say(f"{name}: {stage}", f", {done} of {total}")

    return told


def _is_range(given: tuple[str, Extents]) -> bool:
    return not all(isinstance(extent, int) for extent in given[1])


def _cells(row: Warmed) -> list[str]:
    described = [f"{name} {_text(shape)}" for name, shape in row.inputs.items()]
    described += [f"{name}={value}" for name, value in row.values.items()]
    return [row.network, ", ".join(described), row.sizes, str(row.forms), str(row.compiled)]


def _text(extents: Extents) -> str:
    """A shape, or a range of them, as `--shape` takes it."""
    parts = (
        str(e)
        if isinstance(e, int)
        else "-".join(map(str, e[:2])) + "".join(f"/{s}" for s in e[2:])
        for e in extents
    )
    return "x".join(parts)


def _bytes_below(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True)
class _Value:
    name: str
    channels: int


@dataclass
class _Builder:
    """The nodes and constants of a network, written one after the other."""

    nodes: list[FileNode] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def node(self, op: str, inputs: tuple[str, ...], channels: int, **attributes: Any) -> _Value:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(FileNode(op, inputs, (name,), attributes, name))
        return _Value(name, channels)

    def constant(self, *shape: int) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.broadcast_to(np.float32(0.5), shape)
        return name

    def conv(
        self, x: _Value, channels: int, kernel: int, stride: int = 1, groups: int = 1, act: str = ""
    ) -> _Value:
        weights = self.constant(channels, x.channels // groups, kernel, kernel)
        y = self.node(
            "Conv",
            (x.name, weights, self.constant(channels)),
            channels,
            strides=(stride, stride),
            pads=(kernel // 2,) * 4,
            group=groups,
        )
        return self.activation(y, act) if act else y

    def activation(self, x: _Value, act: str) -> _Value:
        if act == "Relu":
            return self.node("Relu", (x.name,), x.channels)
        low, high = f"{x.name}_low", f"{x.name}_high"
        self.constants |= {low: np.array(0, np.float32), high: np.array(6, np.float32)}
        return self.node("Clip", (x.name, low, high), x.channels)

    def pool(self, x: _Value, kernel: int, pad: int) -> _Value:
        size = {"kernel_shape": (kernel, kernel), "strides": (2, 2), "pads": (pad,) * 4}
        return self.node("MaxPool", (x.name,), x.channels, **size)

    def add(self, x: _Value, y: _Value) -> _Value:
        return self.node("Add", (x.name, y.name), x.channels)

    def dense(self, x: _Value, channels: int) -> _Value:
        inputs = (x.name, self.constant(channels, x.channels), self.constant(channels))
        return self.node("Gemm", inputs, channels, transB=1)

    def classifier(self, x: _Value) -> _Value:
        x = self.node("GlobalAveragePool", (x.name,), x.channels)
        return self.dense(self.node("Flatten", (x.name,), x.channels), _CLASSES)


def _resnet(b: _Builder, x: _Value, blocks: tuple[int, ...], bottleneck: bool) -> _Value:
    """He et al. 2016 (arXiv 1512.03385), with the stride in the 3x3 of a bottleneck."""
    x = b.pool(b.conv(x, 64, 7, 2, act="Relu"), 3, 1)
    for stage, count in enumerate(blocks):
        inner = 64 * 2**stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            if bottleneck:
                y = b.conv(b.conv(x, inner, 1, act="Relu"), inner, 3, stride, act="Relu")
                y = b.conv(y, 4 * inner, 1)
            else:
                y = b.conv(b.conv(x, inner, 3, stride, act="Relu"), inner, 3)
            if stride != 1 or x.channels != y.channels:
                x = b.conv(x, y.channels, 1, stride)
            x = b.activation(b.add(y, x), "Relu")
    return b.classifier(x)


def _mobilenet_v2(b: _Builder, x: _Value) -> _Value:
    x = b.conv(x, 32, 3, 2, act="Relu6")
    for expansion, channels, blocks, first_stride in _MOBILENET_V2:
        for block in range(blocks):
            stride, wide, y = 1 if block else first_stride, x.channels * expansion, x
            if expansion != 1:
                y = b.conv(y, wide, 1, act="Relu6")
            y = b.conv(b.conv(y, wide, 3, stride, wide, act="Relu6"), channels, 1)
            x = b.add(x, y) if stride == 1 and x.channels == channels else y
    return b.classifier(b.conv(x, 1280, 1, act="Relu6"))


_NETWORKS: Mapping[str, Callable[[_Builder, _Value], _Value]] = {
    "MobileNetV2": _mobilenet_v2,
    "ResNet-18": lambda b, x: _resnet(b, x, (2, 2, 2, 2), bottleneck=False),
    "ResNet-50": lambda b, x: _resnet(b, x, (3, 4, 6, 3), bottleneck=True),
}
USUAL = tuple(_NETWORKS)


def usual_network(name: str) -> Model:
    """One of `USUAL`: input `(N, 3, 224, 224)`, output `(N, 1000)` logits."""
    builder = _Builder()
    y = _NETWORKS[name](builder, _Value("x", 3))
    return Model(
        inputs=(ModelInput("x", FLOAT32, _IMAGE),),
        outputs=(y.name,),
        output_shapes=(("N", _CLASSES),),
        output_dtypes=(FLOAT32,),
        opset=_OPSET,
        nodes=tuple(builder.nodes),
        constants=builder.constants,
        dtype=FLOAT32,
        bytes=0,
        limits=Limits(),
        metadata={},
        spread_bytes=0,
    )
