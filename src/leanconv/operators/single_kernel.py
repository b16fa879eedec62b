"""Operations that have one implementation each: what the modules of `kernels` compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, hypot, log2, prod
from types import MappingProxyType
from typing import cast

from leanconv import lazy_imports
from leanconv.algorithms.parameters import AUTO, Choice, Parameters
from leanconv.codegen.lowered import Lowered
from leanconv.codegen.shuffles import power_below
from leanconv.graph.halves import in_float32, rounds_to_halves, stored_half
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops import OPS
from leanconv.graph.ops.pointwise import terms_of
from leanconv.graph.ops.quantised_layers import WORD_BITS
from leanconv.graph.ops.resample import order
from leanconv.graph.ops.resize import resized_axes
from leanconv.graph.ops.sampling import TAPS
from leanconv.kernels import KernelModule
from leanconv.operators.calls import of_halves
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.records import cached_property, replace
from leanconv.spec.format import Format, ceil_div
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOAT64, HALVES, INT32, DType

_WEIGHTS = ".panels"  # with what names of packed weights end


class SingleKernel(Operator):
    """The operations of one module of `kernels`.

    Args:
        name: of the module, imported when it is first needed.
        ops: the operations.
    """

    def __init__(self, name: str, ops: Sequence[str]) -> None:
        self._name, self.ops = name, tuple(ops)

    @cached_property
    def _module(self) -> KernelModule:
        return cast(KernelModule, lazy_imports.module(self._name))

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """Return the answer of the module, of halves as of float32; False without one."""
        half = stored_half(node, graph)
        seen = graph if half is None else in_float32(graph)
        accepts = getattr(self._module, "accepts_blocked", None)
        return accepts is not None and bool(accepts(node, seen, block))

    def policy(self, node: Node, graph: Graph) -> FormatPolicy:
        """Prefer blocks from as many channels on as the operation says."""
        least = OPS[node.op].blocked
        many = least and graph.types[node.inputs[0]].shape[1] >= least
        return FormatPolicy.PREFER_BLOCKED if many else FormatPolicy.FOLLOW_INPUTS

    def takes_codes(self, node: Node) -> bool:
        """Return whether the module's `CODES_IN_BLOCKS` says so."""
        return getattr(self._module, "CODES_IN_BLOCKS", False)

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """One choice without a name, estimated by the bytes that are moved."""
        del vary_parameters
        node, graph, target = context.node, context.graph, context.target
        if _is(node, "recurrence"):
            cycles = _recurrence_cycles(node, graph, target)
        elif _is(node, "packed_matmul"):
            cycles = _packed_cycles(node, graph, target)
        elif node.op == "Expression":
            cycles = max(_cycles(node, graph, target), _expression_cycles(node, graph, target))
        elif _interpolates(node):
            cycles = _resized_cycles(node, graph, context.formats, target)
        elif _is(node, "sampling", "deform"):
            cycles = _sampled_cycles(node, graph, context.formats, target)
        else:
            cycles = _cycles(node, graph, target)
        return [replace(AUTO, cycles=cycles, error=_rounding(context.node, context.graph))]

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """Codes of products, their scales and zero points."""
        return tuple(filter(None, node.inputs[1:4])) if _is(node, "packed_matmul") else ()

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """The module's kernels; none for a result without elements."""
        del choice
        node, graph = context.node, context.graph
        if not any(graph.types[name].elements for name in node.outputs):
            return Lowered((), algorithm="empty")
        half = stored_half(node, graph)
        if half is None:
            return self._module.lower(context)
        lowered = self._module.lower(replace(context, graph=in_float32(graph)))
        return of_halves(lowered, graph, half, lambda name: name.endswith(_WEIGHTS))


# Of a product whose rows are bytes, as a part of its largest result: an estimate. Each byte errs by
# 1/254 of its block's largest element at most; 0.3 to 0.7 % were measured of normal numbers.
_BYTES_ERROR: float = 2**-7
_BYTES, _FLOATS = "bytes", "floats"


class PackedProducts(SingleKernel):
    """Products with weights of few bits: rows may become bytes where their node allows it."""

    algorithms = MappingProxyType({_BYTES: Parameters, _FLOATS: Parameters})

    def choices(self, context: NodeContext, vary_parameters: bool = True) -> list[Choice]:
        """Return bytes before floats where a node may take both."""
        (floats,) = super().choices(context, vary_parameters)
        floats = replace(floats, algorithm=_FLOATS)
        node, graph, target = context.node, context.graph, context.target
        if not self._module.in_bytes(node.attributes, target):  # type: ignore[attr-defined]
            return [floats]
        return [
            Choice(_BYTES, Parameters(), _byte_cycles(node, graph, target), _BYTES_ERROR),
            floats,
        ]

    def lower(self, context: NodeContext, choice: Choice = AUTO) -> Lowered:
        """The module's kernels, of floats where that is chosen."""
        node = context.node
        if choice.algorithm == _FLOATS and node.attributes["bytes"]:
            node = replace(node, attributes={**node.attributes, "bytes": False})
        return super().lower(replace(context, node=node))


def _rounding(node: Node, graph: Graph) -> float:
    """Return the relative error of a node: roundoff of a cast to float16, or of scales."""
    if node.op == "Expression":
        scaled = (term for term in terms_of(node) if term.op == "DequantizeLinear")
        roundoffs = (dict(term.attributes)["dtype"].roundoff for term in scaled)
        return hypot(rounds_to_halves(node, graph), *roundoffs)
    if stored_half(node, graph) and node.op != "Cast":
        return rounds_to_halves(node, graph)
    if node.op == "DequantizeLinear":
        return graph.types[node.output].dtype.roundoff
    if node.op != "Cast" or not graph.types[node.inputs[0]].dtype.is_float:
        return 0.0
    target: DType = node.attributes["to"]
    return target.roundoff if target in HALVES else 0.0


# Operations for each element of a result that are issued one by one, beside what is moved.
_OF_SHARES = 20  # exponentials, their sum and the division
_TAPS_AT_ONCE = 2  # of a pool, for one operation


def _cycles(node: Node, graph: Graph, target: Target) -> float:
    """Estimated cycles of an operation that is no convolution."""
    names, costs = (*(name for name in node.inputs if name), *node.outputs), target.costs
    item = max(graph.types[name].dtype.bytes for name in names)
    elements = sum(graph.types[name].elements for name in names)
    out = sum(graph.types[name].elements for name in node.outputs)
    moved = costs.moved(elements * item, target.l2_bytes)
    return costs.stage + moved + out * _operations(node, graph) / costs.scalar_flops


def _is(node: Node, *kernels: str) -> bool:
    return OPS[node.op].kernel in kernels


def _interpolates(node: Node) -> bool:
    return _is(node, "resample") or (_is(node, "resize") and node.attributes["mode"] == "linear")


def _operations(node: Node, graph: Graph) -> float:
    """Operations for each element of a result, beside loading and storing."""
    if _is(node, "matmul", "code_matmul"):
        return graph.types[node.inputs[0]].shape[-1]
    if _is(node, "attention"):  # two products, of queries and keys and of shares and values
        return 2 * graph.types[node.inputs[2]].shape[-2]
    if _is(node, "pool", "plane_pool") and not OPS[node.op].of_floats:
        return _joined(node.attributes.get("kernel_shape", (1,))) / _TAPS_AT_ONCE
    return _OF_SHARES if _is(node, "softmax") else 0.0


def _joined(kernel: Sequence[int]) -> float:
    """Values that a pool joins for a result: rows of taps, then columns, many of them by halves."""
    *rows, columns = kernel
    return prod(rows) + min(columns, 1 + 2 * log2(columns))


_OF_SERIES = 30  # instructions for a vector; 0.06 ms for 784 KiB of erf on Sapphire Rapids


def _expression_cycles(node: Node, graph: Graph, target: Target) -> float:
    dtypes = {graph.types[name].dtype for name in (*node.inputs, node.output)}
    lanes = target.lanes(FLOAT64 if FLOAT64 in dtypes else FLOAT32)
    issued = sum(_OF_SERIES if OPS[term.op].series else 1 for term in terms_of(node))
    vectors = ceil_div(graph.types[node.output].elements, lanes)
    return float(target.costs.stage + vectors * issued / target.fma_units)


_INSTRUCTIONS = 4  # that a vector of codes takes before its products
_TILE_ROWS = 8  # that share them
_ROWS_OF_BYTES = 4  # the same of bytes


def _packed_cycles(node: Node, graph: Graph, target: Target) -> float:
    """Estimated cycles of a product with weights of few bits: they are read, and made floats."""
    costs, (read, vectors, rows) = target.costs, _read_codes(node, graph, target)
    issued = vectors * (_INSTRUCTIONS * ceil_div(rows, _TILE_ROWS) + rows) / target.fma_units
    return float(costs.stage + max(issued, read / costs.l3_or_dram_read(read, target.l3_bytes)))


def _byte_cycles(node: Node, graph: Graph, target: Target) -> float:
    """The same where codes are multiplied as bytes: four of a column at once, twice a word."""
    costs, (read, vectors, rows) = target.costs, _read_codes(node, graph, target)
    words = vectors / (WORD_BITS // node.attributes["bits"])
    issued = words * _INSTRUCTIONS * (ceil_div(rows, _ROWS_OF_BYTES) + rows) / target.fma_units
    return float(costs.stage + max(issued, read / costs.l3_or_dram_read(read, target.l3_bytes)))


def _read_codes(node: Node, graph: Graph, target: Target) -> tuple[int, int, int]:
    """The bytes of codes, scales and zero points, the vectors of codes, and the rows."""
    read = sum(graph.types[name].bytes for name in node.inputs[1:] if name)
    y, given = graph.types[node.output], node.attributes
    vectors = ceil_div(given["outputs"], target.lanes(FLOAT32)) * given["inner"]
    return read, vectors, y.elements // given["outputs"]


def _recurrence_cycles(node: Node, graph: Graph, target: Target) -> float:
    """Estimated cycles of recurrent layers: each step reads all weights once, from L2 or L3."""
    x, weights = (graph.types[name] for name in node.inputs[:2])
    costs, (steps, batch, _) = target.costs, x.shape
    near = weights.bytes <= weights.shape[0] * costs.l2_share * target.l2_bytes
    reads = weights.bytes / (costs.l2_read if near else costs.l3_read)
    sums = batch * weights.elements / (target.fma_units * target.lanes(weights.dtype))
    results = sum(graph.types[name].bytes for name in node.outputs)
    return float(costs.stage + (x.bytes + results) / costs.copy + steps * max(reads, sums))


_MIX = 6  # operations of a vector of the result: four cells, and two rows' weights


def _resized_cycles(
    node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
) -> float:
    """Estimated cycles of a Resample, or of a linear Resize.

    Beside what is moved, cells are multiplied and added one by one where the last axis is mixed,
    and in vectors where it is not.
    """
    source, result = graph.types[node.inputs[0]], graph.types[node.output]
    single, vectors, read = _mixing(node, graph, formats, target)
    costs, item = target.costs, result.dtype.bytes
    moved = costs.moved((min(source.elements, read) + result.elements) * item, target.l2_bytes)
    return float(costs.stage + moved + single * costs.element_move + vectors * costs.vector_move)


def _mixing(
    node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
) -> tuple[float, float, int]:
    """Operations on elements, those on vectors, and the elements that are read."""
    source, result = graph.types[node.inputs[0]], graph.types[node.output]
    block, given = formats[node.output].block, node.attributes
    lanes = target.lanes(result.dtype if result.dtype.is_float else INT32)
    shape = list(source.shape)
    if _is(node, "resize"):
        resized = resized_axes(source.shape, node.attributes)
        corners = 1 << sum(resized)
        grown_maps = lazy_imports.named("leanconv.kernels.resize.grown_maps")
        if not block and grown_maps(resized, source, result):
            spread = 2 * prod(source.shape[:-1]) * result.shape[-1]
            return spread, _MIX * result.elements / lanes, source.elements
        cells = 2 * corners * result.elements
        if not block and resized[-1]:
            return cells, 0.0, corners * result.elements
        width = block or power_below(result.shape[-1], lanes)
        return 0.0, cells / width, corners * result.elements
    single = vectors = 0.0
    for axis in order(given):
        number = given["axes"].index(axis)
        stretch = max(1.0, 1 / given["scales"][number]) if given["antialias"] else 1.0
        taps = min(ceil(stretch * (4 if given["mode"] == "cubic" else 2)), shape[axis])
        shape[axis] = given["sizes"][number]
        inner = prod(shape[axis + 1 :]) * (block or 1)
        if inner == 1:
            single += prod(shape) * taps
        else:
            vectors += prod(shape) * taps / min(lanes, inner)
    return single, vectors, source.elements


_GATHERED = 3  # element moves of a cell that is gathered
_BLENDED = 2  # vector moves of a cell of a block


def _sampled_cycles(
    node: Node, graph: Graph, formats: Mapping[str, Format], target: Target
) -> float:
    """Estimated cycles of reading between pixels: cells are gathered, or vectors of a block."""
    x, costs, block = graph.types[node.inputs[0]], target.costs, formats[node.inputs[0]].block
    taps = TAPS[node.attributes.get("mode", "linear")] ** (len(x.shape) - 2)
    each = _BLENDED * costs.vector_move / block if block else _GATHERED * costs.element_move
    cells = taps * graph.types[node.output].elements
    return float(_cycles(node, graph, target) + cells * each)


def _single(name: str) -> SingleKernel:
    ops = [op for op, each in OPS.items() if each.kernel == name]
    kind = PackedProducts if name == "packed_matmul" else SingleKernel
    return kind(f"leanconv.kernels.{name}", ops)


SINGLE_KERNELS = tuple(_single(name) for name in sorted({e.kernel for e in OPS.values()} - {""}))
