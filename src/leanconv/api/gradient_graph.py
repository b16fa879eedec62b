"""The gradients of a convolution as a graph of up to three convolutions and sums.

    inputs   x, w, dy: those that are read, as the user has them
    outputs  dx, dw, db: those that are needed

The gradient of a Conv's data is a transposed convolution by the same weights, that of a
ConvTranspose's data a Conv; the gradient of a ConvTranspose's weights is that of the Conv that
leads from its output to its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from leanconv.graph.builder import Builder
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.limits import Limits
from leanconv.graph.value import Value
from leanconv.operators import operator_of
from leanconv.planner.decisions import Decision
from leanconv.records import cached_property, dataclass, replace
from leanconv.spec import NHWC, PLAIN, ConvSpec, Format
from leanconv.spec.conv import transposed_reach
from leanconv.spec.transposed import TransposedSpec
from leanconv.types import HALVES, DType

NEEDS = ("x", "w", "bias")
NODES = {"x": "dx", "w": "dw"}  # the gradients that have algorithms, by what needs them
_READ = {"dx": ("w", "dy"), "dw": ("x", "dy"), "db": ("dy",)}
RESULTS = {"x": "dx", "w": "dw", "bias": "db"}


@dataclass(frozen=True)
class GradientSpec:
    """Which gradients of which convolution.

    Attributes:
        layer: the convolution, without bias, residual and activation.
        needs: some of `NEEDS`, in their order.
        taps_first: whether the weights that are read lie with their channels last, (K, kernel…,
            C / groups); dw never does.
        transposed_last: whether x, dy and dx of a transposed convolution, which has no layout, have
            their channels last.
    """

    layer: ConvSpec | TransposedSpec
    needs: tuple[str, ...]
    taps_first: bool = False
    transposed_last: bool = False

    def __str__(self) -> str:
        return f"gradients {', '.join(self.results)} of {self.layer}"

    @property
    def is_transposed(self) -> bool:
        """Whether the convolution is a transposed one."""
        return isinstance(self.layer, TransposedSpec)

    @property
    def dtype(self) -> DType:
        """Of all arrays."""
        layer = self.layer
        return layer.dtype if isinstance(layer, TransposedSpec) else layer.precision.x

    @property
    def last(self) -> bool:
        """Whether x, dy and dx have their channels last."""
        layer = self.layer
        return layer.format == NHWC if isinstance(layer, ConvSpec) else self.transposed_last

    @property
    def results(self) -> tuple[str, ...]:
        """Names of what is computed: some of dx, dw, db."""
        return tuple(RESULTS[each] for each in self.needs)

    @property
    def parts(self) -> list[tuple[str, ...]]:
        """Needs that one program computes: the bias with the weights, which read the same dy.

        Of a transposed convolution that dy is what windows slide over: they meet its elements
        several times, or never, and so does no kernel sum each of them once.
        """
        if {"w", "bias"} <= {*self.needs} and not self.is_transposed:
            return [*(("x",) for _ in self.needs[:-2]), ("w", "bias")]
        return [(each,) for each in self.needs]

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the arrays that are read: some of x, w, dy."""
        read = {name for result in self.results for name in _READ[result]}
        return tuple(name for name in ("x", "w", "dy") if name in read)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every array, as the user has it."""
        layer = self.layer
        x, dw, y = layer.input_shape, layer.weight_shape, layer.output_shape
        if self.transposed_last:
            x, y = ((n, *size, channels) for n, channels, *size in (x, y))
        w = (dw[0], *dw[2:], dw[1]) if self.taps_first else dw
        return {"x": x, "w": w, "dy": y, "dx": x, "dw": dw, "db": (self.planes["dy"][1],)}

    @cached_property
    def planes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of x and dy with channels second."""
        layer = self.layer
        found = {"x": layer.input_shape, "dy": layer.output_shape}
        if not self.last or self.transposed_last:
            return found
        return {name: (shape[0], shape[-1], *shape[1:-1]) for name, shape in found.items()}

    @cached_property
    def window(self) -> dict[str, Any]:
        """Attributes of the nodes, those of the convolution from the larger image."""
        layer = self.layer
        pads = layer.pads if isinstance(layer, TransposedSpec) else layer.pad_begin + layer.pad_end
        return {
            "strides": layer.stride,
            "dilations": layer.dilation,
            "pads": tuple(pads),
            "group": layer.groups,
            "kernel_shape": layer.weight_shape[2:],
        }


def gradient_graph(spec: GradientSpec, any_size: bool = False) -> Graph:
    """The graph that computes gradients.

    Args:
        spec: which.
        any_size: whether choices are to be those of many batches and sizes of images.
    """
    computed = spec.dtype.accumulator if spec.dtype in HALVES else spec.dtype
    builder = Builder(computed, Limits(), 0)
    given = {name: Value(TensorType(spec.shapes[name], computed)) for name in spec.reads}
    names, images = list(given.items()), dict(given)
    for name in ("x", "dy") if spec.last else ():
        if name in given and (name == "dy" or "w" in spec.needs):
            images[name] = _moved(builder, given[name], NHWC.axes(len(spec.planes[name])))
            names.append((f"{name}.planes", images[name]))
    results: dict[str, Value] = {}
    if "x" in spec.needs:
        dx = _data(builder, spec, images["dy"], given["w"])
        names.append(("dx.rows", dx))
        results["dx"] = _last(builder, dx) if spec.last else dx
    if "w" in spec.needs:
        large, small = ("dy", "x") if spec.is_transposed else ("x", "dy")
        pair = [images[large], images[small]]
        given_window = {**spec.window, "with_bias": ("w", "bias") in spec.parts}
        rows, *db = builder.emit_all("ConvWeightGradient", pair, "dw", **given_window)
        names.append(("dw.rows", rows))
        results["dw"] = builder.emit("Reshape", [rows], "dw", shape=spec.shapes["dw"])
        results.update(zip(("db",), db, strict=False))
    if "bias" in spec.needs and "db" not in results:
        rank = len(spec.shapes["dy"])
        axes = range(rank - 1) if spec.last else (0, *range(2, rank))
        given_axes = {"axes": tuple(axes), "keepdims": False}
        results["db"] = builder.emit("ReduceSum", [given["dy"]], "db", **given_axes)
    graph = builder.finish(given, results, names)
    graph = graph if computed == spec.dtype else _in_halves(graph, spec.dtype)
    return replace(graph, open_axes=_open_axes(graph)) if any_size else graph


def _in_halves(graph: Graph, half: DType) -> Graph:
    """The graph with its values stored in halves; what packs weights reads them in float32."""
    types = {name: replace(kind, dtype=half) for name, kind in graph.types.items()}
    nodes = list[Node]()
    for node in graph.nodes:
        if node.name == NODES["x"] and node.op != "Slice":
            rows, wide = node.inputs[1], f"{node.inputs[1]}.wide"
            types[wide] = replace(types[rows], dtype=half.accumulator)
            nodes.append(Node("Cast", (rows,), (wide,), {"to": half.accumulator}, "widen"))
            node = replace(node, inputs=(node.inputs[0], wide))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)


def _open_axes(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The axes of images but their channels, by name."""
    found: dict[str, tuple[int, ...]] = {}
    weights = {"w", "dw"}
    for name, kind in graph.types.items():
        rank = len(kind.shape)
        if rank > 2 and name not in weights:
            found[name] = (0, *range(2, rank))
    for node in graph.nodes:  # of images whose channels lie last
        if node.op == "Transpose":
            name = node.inputs[0] if node.inputs[0] in graph.inputs else node.output
            found[name] = tuple(range(len(graph.types[name].shape) - 1))
    return found


def _data(builder: Builder, spec: GradientSpec, dy: Value, w: Value) -> Value:
    """The gradient of the data, from planes and weights."""
    shape, wanted = spec.layer.weight_shape, spec.planes["x"][2:]
    window = {**spec.window, "taps_first": spec.taps_first, "exact": False}
    rows = builder.emit("Reshape", [w], "rows", shape=(shape[0], prod(shape[1:])))
    if spec.is_transposed:
        dx = builder.emit("DataConv", [dy, rows], "dx", **window)
        if dx.shape[2:] == wanted:
            return dx
        # More than a stride was added to the output: positions that the output has no tap for.
        rank, size = len(dx.shape), (*dx.shape[:2], *wanted)
        kept = {"starts": (0,) * rank, "steps": (1,) * rank, "sizes": size}
        return builder.emit("Slice", [dx], "cut", **kept)
    layer, cut = spec.layer, window["pads"]
    axes = zip(spec.planes["dy"][2:], shape[2:], layer.stride, layer.dilation, strict=True)
    reach = [transposed_reach(*axis, 0) for axis in axes]
    ends = zip(wanted, reach, cut[: len(wanted)], cut[len(wanted) :], strict=True)
    added = tuple(size - (full - before - after) for size, full, before, after in ends)
    return builder.emit("DataConvTranspose", [dy, rows], "dx", **window, output_padding=added)


def _moved(builder: Builder, value: Value, last: tuple[int, ...]) -> Value:
    """An image with its channels second."""
    perm = tuple(last.index(axis) for axis in range(len(last)))
    return builder.emit("Transpose", [value], "to_planes", perm=perm)


def _last(builder: Builder, value: Value) -> Value:
    """An image with its channels last."""
    return builder.emit("Transpose", [value], "to_last", perm=NHWC.axes(len(value.shape)))


def decisions_of(graph: Graph, least: int = 0) -> Sequence[Decision]:
    """Return decisions by which images are read and written as they lie, where kernels can.

    Args:
        graph: of gradients.
        least: channels of an image that has its channels last and that a strided transposed
            convolution writes. Fewer are computed as planes and then moved: beside each other they
            leave most lanes of a vector empty, and phases cannot share one.
    """
    found, written = list[Decision](), dict[str, Format]()
    for node in graph.nodes:
        decision = _in_place(node, graph, written)
        strided = node.op == "DataConvTranspose" and max(node.attributes["strides"]) > 1
        if strided and graph.types[node.output].shape[1] < least:
            decision = replace(decision, writes=PLAIN)
        written[node.key] = decision.writes
        found.append(decision)
    return found


def _in_place(node: Node, graph: Graph, written: dict[str, Format]) -> Decision:
    images = [n for n in node.inputs if n not in graph.constants and len(graph.types[n].shape) > 2]
    if node.op == "Transpose":
        (name,) = node.inputs
        if name in graph.inputs:
            return Decision({name: PLAIN}, NHWC)
        return Decision({name: written[name]}, PLAIN)
    last = operator_of(node).may_be_last(node, graph)
    reads = {n: NHWC if n in last and written.get(n) == NHWC else PLAIN for n in images}
    moved = any(user.op == "Transpose" for user in graph.users()[node.key])
    return Decision(reads, NHWC if moved and node.key in last else PLAIN)
