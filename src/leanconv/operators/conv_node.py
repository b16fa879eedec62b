"""The convolution of a node: its problem, formats and constants, in every precision.

Floats are computed where they lie. Kernels of codes read and write blocks of channels alone: where
a node's input or output is plain, it is reordered into a buffer of the node's own; an input of few
channels into blocks that are no larger than what one step of a kernel multiplies.

    bias[k]' = bias[k] - x_zero · sum of w[k]        folded in when the weights are packed

so that kernels multiply the codes as they are. Where a kernel shifts them, to have the signs that
an instruction takes, x_zero is shifted alike (`code_shift`). That holds where no tap is in the
padding: a network has its padding as nodes of their own where it is not zero (`passes.pad_codes`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.common.conv import Conv, GroupedConv
from leanconv.algorithms.fused.kernel import Constants
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.magnitudes import (
    PairTraits,
    WeightTraits,
    are_small,
    pair_traits,
    sum_bits,
)
from leanconv.algorithms.problem import Excess, Problem, default_error, half_error
from leanconv.codegen.dot import dot_of, fitting_lanes, group_of, takes_bytes, way_of
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window, triple
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node, number_of
from leanconv.graph.ops.conv import unfolded, unfolded_rows
from leanconv.graph.ops.quantised_layers import form_of, numbers_of, quantisation_of
from leanconv.operators.calls import reordered
from leanconv.operators.operator import NodeContext
from leanconv.records import cached_property, replace
from leanconv.spec import Activation, ConvSpec, Format
from leanconv.spec.requantise import Quantisation, Requantise
from leanconv.target import Target
from leanconv.types import HALVES, INT32, SINGLE, UINT8, DType, Precision
from leanconv.units import shape_text

_CONSTANTS, _CODE_CONSTANTS = (1, 2, 4), (1, 2, 3, 5)  # inputs that are packed, of codes the latter
_RESIDUAL, _CODE_RESIDUAL = 3, 4  # the input that is added


def precision_of(x: DType, w: DType, y: DType) -> Precision:
    """Return the precision of a convolution whose operands are stored in these types."""
    if not x.is_float:
        return Precision(x, w, INT32, y)
    half = next((each for each in (y, x) if each in HALVES), None)
    return Precision.of(x) if half is None else Precision(x, half, half.accumulator, y)


def attributes_spec(
    x_shape: tuple[int, ...],
    w_shape: tuple[int, ...],
    attributes: Mapping[str, Any],
    precision: Precision | DType,
    *,
    bias: bool = False,
    residual: bool = False,
    activation: Activation | None = None,
    requantise: Requantise | None = None,
) -> ConvSpec:
    """Return the spec of ONNX's attributes, for x (N, C, spatial…) and w (K, C/g, kernel…)."""
    rank = len(x_shape) - 2
    return ConvSpec(
        batch=x_shape[0],
        in_channels=w_shape[1] * attributes["group"],  # of x they may be open
        out_channels=w_shape[0],
        size=x_shape[2:],
        kernel=w_shape[2:],
        stride=tuple(attributes["strides"]),
        dilation=tuple(attributes["dilations"]),
        pad_begin=tuple(attributes["pads"][:rank]),
        pad_end=tuple(attributes["pads"][rank:]),
        groups=attributes["group"],
        precision=Precision.of(precision),
        bias=bias,
        residual=residual,
        activation=activation,
        requantise=requantise,
    )


def transposed_problem(
    node: Node, graph: Graph, x: Access, y: Access, max_error: float | None
) -> Problem:
    """Return the problem of a whole transposed convolution, not split into phases.

    Args:
        node: a transposed convolution, with weights (C, K / groups, k…).
        graph: types of its values.
        x, y: where input and output lie.
        max_error: relative error accepted of the layer; the default of one layer if None.
    """
    given, names = node.attributes, (*node.inputs[:2], node.output)
    x_type, w_type, y_type = (graph.types[name] for name in names)
    w_type = unfolded(given, w_type) if of_data(node) else w_type
    types = precision_of(x_type.dtype, w_type.dtype, y_type.dtype)
    (channels, outputs, *kernel), rank = w_type.shape, len(x_type.shape) - 2
    conv = Conv(
        batch=x_type.shape[0],
        groups=given["group"],
        inputs=channels // given["group"],  # of x they may be open
        outputs=outputs,
        precision=types,
        epilogue=Epilogue(bool(node.input(2)), False, given.get("activation")),
        window=Window(
            triple(x_type.shape[2:], 1),
            triple(y_type.shape[2:], 1),
            triple(tuple(kernel), 1),
            triple(tuple(given["strides"]), 1),
            triple(tuple(given["dilations"]), 1),
            triple(tuple(given["pads"][:rank]), 0),
        ),
        x=x,
        y=y,
    )
    label = f"a transposed convolution of {shape_text(tuple(kernel))} taps"
    error = default_error(types) if max_error is None else max_error
    return Problem(conv, label=label, max_error=error)


def sums_have(node: Node, graph: Graph) -> int:
    """Return the bits of sums of products of codes: 26 to 32; 32 where nothing depends on them."""
    w = graph.constants[node.inputs[1]]
    if prod(w.shape[2:]) == 1:
        return 32
    case = number_of(w), graph.types[node.inputs[0]].dtype
    known = _sum_bits.get(case)
    if known is None:
        if len(_sum_bits) >= _MOST_KNOWN:
            _sum_bits.clear()
        known = _sum_bits[case] = sum_bits(w, case[1])
    return known


def pairs_in(w: np.ndarray, target: Target) -> PairTraits | None:
    """Return what is known of pairs of int8 weights; None where a target has no use for it."""
    lanes = fitting_lanes(target)
    return None if lanes is None else pair_traits(w, lanes)


def excess_in(node: Node, graph: Graph, target: Target) -> Excess | None:
    """Return `Problem.excess` of a convolution of codes, its groups not merged."""
    w, groups = graph.constants[node.inputs[1]], node.attributes["group"]
    pairs = pairs_in(w, target)
    return None if pairs is None else pairs.excess_in(groups, w.shape[1])


_sum_bits: dict[tuple[int, DType], int] = {}  # by the weights' number
_MOST_KNOWN = 4096


def of_codes(node: Node) -> bool:
    """Return whether a node is a convolution of codes."""
    return node.op == "QLinearConv"


def of_data(node: Node) -> bool:
    """Return whether each run computes the weights of a convolution, or its bias."""
    return node.op in ("DataConv", "DataConvTranspose")


def is_transposed(node: Node) -> bool:
    """Return whether a node is a transposed convolution."""
    return node.op in ("ConvTranspose", "DataConvTranspose")


def packed_inputs(node: Node) -> tuple[int, ...]:
    """Return the numbers of the inputs that are packed: weights, bias, slopes, scales."""
    return _CODE_CONSTANTS if of_codes(node) else _CONSTANTS


class ConvNode:
    """A node with the problem that its kernels solve.

    Args:
        context: the node.

    Attributes:
        of_data: whether each run computes the weights, or the bias.
    """

    def __init__(self, context: NodeContext) -> None:
        self.context, self.node, self.graph = context, context.node, context.graph
        self.of_data = of_data(context.node)

    @property
    def residual(self) -> str:
        """Name of the value that is added, "" without one."""
        return self.node.input(_CODE_RESIDUAL if self.of_codes else _RESIDUAL)

    @cached_property
    def precision(self) -> Precision:
        """Types of operands and sums."""
        names = (*self.node.inputs[:2], self.node.output)
        return precision_of(*(self.graph.types[name].dtype for name in names))

    @property
    def of_codes(self) -> bool:
        """True if sums are integers, which nothing rounds."""
        return not self.precision.accumulate.is_float

    @property
    def reproducible(self) -> bool:
        """True if choices must not depend on the batch; with exact sums they may."""
        return self.context.accuracy.reproducible and not self.of_codes

    @cached_property
    def spec(self) -> ConvSpec:
        """The convolution of the node's groups; of none that is transposed.

        Raises:
            UnsupportedError: its padding is of another code than 0.
        """
        node, given = self.node, self.node.attributes
        if given.get("x_zero") and any(given["pads"]):
            raise UnsupportedError(
                f"node {node.name!r} ({node.op}) has padding of code {given['x_zero']}; "
                "expected padding of 0, or none behind a Pad"
            )
        return attributes_spec(
            self.graph.types[node.inputs[0]].shape,
            self._weight_shape,
            given,
            self.precision,
            bias=self._has_bias,
            residual=bool(self.residual),
            activation=None if self.of_codes else given.get("activation"),
            requantise=self._requantise,
        )

    # -- formats -------------------------------------------------------------------------------
    @property
    def _block(self) -> Format:
        return Format(self.context.target.channel_block(UINT8))

    @cached_property
    def forms(self) -> dict[str, Format]:
        """Formats in which kernels take the images that the node reads and writes, by name."""
        x, y = self.node.inputs[0], self.node.output
        found = {name: self.context.formats[name] for name in (x, y, self.residual) if name}
        if not self.of_codes:
            return found
        group = group_of(self.precision)
        few = not found[x].block and self.graph.types[x].shape[1] <= group
        of_x = Format(group) if few else self._block
        return {**dict.fromkeys(found, self._block), x: of_x}

    @property
    def reorder_cycles(self) -> float:
        """Estimated cycles of bringing plain values into blocks and back."""
        context, moved = self.context, 0
        for name, form in reordered(context, self.forms).items():
            kind = self.graph.types[name]
            moved += (form.elements(kind.shape) + kind.elements) * kind.dtype.bytes
        return moved / context.target.costs.copy

    # -- problem -------------------------------------------------------------------------------
    @cached_property
    def problem(self) -> Problem:
        """The problem that the kernels solve; of a transposed convolution, with all its phases."""
        groups = self.node.attributes["group"]
        alone = self._problem(groups)
        count = self._groups_that_fill_blocks if self.of_codes else 1
        if count == 1 or select.is_possible(alone, self.context.target):
            return alone
        return self._problem(groups // count)

    def _problem(self, groups: int) -> Problem:
        """The problem of so many groups, each of which is one of the node's, or several."""
        context, node, graph = self.context, self.node, self.graph
        x, y = (
            Access.of_format(graph.types[name].shape, self.forms[name])
            for name in (node.inputs[0], node.output)
        )
        if is_transposed(node):
            made = transposed_problem(node, graph, x, y, self._max_error)
        else:
            made = Problem.of(replace(self.spec, groups=groups), x, y, self._max_error)
        made = replace(made, any_size=context.any_size)
        if self.of_data:
            return replace(made, weights_change=True)
        made = replace(made, weights_from_dram=context.accuracy.weights_from_dram)
        if self.of_codes:
            excess = excess_in(node, graph, context.target)
            bits = sums_have(node, graph)
            return replace(made, sum_bits=bits, excess=excess, folds_shift=True)
        if is_transposed(node):  # its phases have other zeros and filters each
            return replace(made, small_weights=are_small(self.weights))
        pixels = made.conv.batch * prod(made.conv.window.out)
        return WeightTraits.of(self.weights, pixels).given_to(made)

    @property
    def _groups_that_fill_blocks(self) -> int:
        """The least number of groups that fill whole blocks of channels; else all groups."""
        groups, block = self.node.attributes["group"], self._block.block
        outputs, inputs = self._weight_shape[0] // groups, self._weight_shape[1]
        count = 1
        while (inputs * count % block or outputs * count % block) and count < groups:
            count += 1
            while groups % count:
                count += 1
        return count

    @property
    def _max_error(self) -> float | None:
        """Relative error accepted of the kernels; halves that are stored add to the layer's."""
        accuracy, types = self.context.accuracy, self.precision
        accepted = accuracy.layer_error
        if accepted is None or self.of_data or self.of_codes:
            return accepted
        if types.x in HALVES or types.y in HALVES:
            accepted += default_error(types) - default_error(SINGLE)
        if accuracy.half is not None:
            accepted += half_error(accuracy.half) + default_error(SINGLE)
        return accepted

    # -- constants -----------------------------------------------------------------------------
    @property
    def _weight_shape(self) -> tuple[int, ...]:
        kind = self.graph.types[self.node.inputs[1]]
        return unfolded(self.node.attributes, kind).shape if self.of_data else kind.shape

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights (K, C / g, kernel…), of one that is transposed (C, K / g, kernel…)."""
        given = self._array(self.node.inputs[1])
        return unfolded_rows(self.node.attributes, given) if self.of_data else given

    @cached_property
    def data(self) -> dict[str, np.ndarray]:
        """Uninitialised arrays in place of weights and bias that each run computes, by name."""
        names = filter(None, self.node.inputs[1:] if self.of_data else ())
        kinds = {name: self.graph.types[name] for name in names if name not in self.graph.constants}
        return {name: np.empty(kind.shape, kind.dtype.numpy) for name, kind in kinds.items()}

    @property
    def weights_are_data(self) -> bool:
        """True if each run computes the weights."""
        return self.node.inputs[1] in self.data

    @property
    def bias_is_data(self) -> bool:
        """True if each run computes the bias."""
        return self.node.input(2) in self.data

    def _array(self, name: str) -> np.ndarray:
        held = self.graph.constants.get(name)
        return self.data[name] if held is None else held

    @property
    def sources(self) -> tuple[np.ndarray, ...]:
        """Arrays that the packed constants beside the weights are made of."""
        names = (self.node.input(number) for number in packed_inputs(self.node)[1:])
        return tuple(self._array(name) for name in names if name)

    def merged_groups(self, problem: Problem) -> int:
        """Return how many of the node's groups kernels compute as one, padded with zero weights."""
        groups: int = self.node.attributes["group"]
        return groups // problem.conv.groups

    def marks(self, candidate: Candidate, problem: Problem) -> tuple[Hashable, ...]:
        """Return what a candidate's packed constants depend on beside the packed arrays."""
        given = (bool(self.node.input(number)) for number in packed_inputs(self.node))
        return (*given, code_shift(candidate), self.merged_groups(problem), self.numbers)

    @property
    def numbers(self) -> Hashable:
        """Attributes that the packed constants depend on; () unless of codes."""
        if not self.of_codes:
            return ()
        return self.node.attributes["x_zero"], self._has_bias, self._quantisation

    @property
    def channels(self) -> Constants:
        """Function from the shift of the kernels' codes to the arrays beside the weights, by role.

        It holds the arrays that these are made of, and nothing else of the graph.
        """
        names = {number: self.node.input(number) for number in packed_inputs(self.node)}
        arrays = {number: self._array(name) for number, name in names.items() if name}
        if self.of_codes:
            zero = self.node.attributes["x_zero"]
            return partial(_code_channels, arrays, self._has_bias, zero, self._quantisation)
        roles = {"bias": 2, "slope": 4}
        found = {role: arrays[number] for role, number in roles.items() if number in arrays}
        return lambda _: found

    @property
    def _quantisation(self) -> Quantisation | None:
        return quantisation_of(self.node.attributes) if self.of_codes else None

    @property
    def _requantise(self) -> Requantise | None:
        if self._quantisation is None:
            return None
        return form_of(self._quantisation, self._array(self.node.input(3)), self.precision.y)

    @property
    def _has_bias(self) -> bool:
        node, types = self.node, self.precision
        if node.input(2) or not self.of_codes:
            return bool(node.input(2))
        way = way_of(types, self.context.target)
        if takes_bytes(types, self.context.target) and not self.of_data:
            way = "bytes"  # perhaps
        return bool(node.attributes["x_zero"]) or dot_of(types, way).shifted


def _code_channels(
    arrays: Mapping[int, np.ndarray],
    has_bias: bool,
    zero: int,
    quantisation: Quantisation | None,
    shift: int,
) -> dict[str, np.ndarray]:
    found = {}
    if has_bias:
        found["bias"] = _folded_bias(arrays[1], arrays.get(2), zero + shift)
    if 3 in arrays:
        found["scale"] = np.vstack([arrays[3], arrays[5]]) if 5 in arrays else arrays[3]
    if quantisation is not None:
        found["quantisation"] = numbers_of(quantisation)
    return found


def _folded_bias(w: np.ndarray, bias: np.ndarray | None, zero: int) -> np.ndarray:
    """Return the bias minus the part of each sum that is due to the input's zero, modulo 2^32."""
    bias = np.zeros(len(w), np.int32) if bias is None else bias
    if not zero:
        return bias
    sums = w.reshape(len(w), -1).sum(axis=1, dtype=np.int64)
    folded: np.ndarray = (bias.astype(np.int64) - zero * sums).astype(np.int32)
    return folded


def code_shift(candidate: Candidate) -> int:
    """Return the number that a candidate's kernels add to every code of the input."""
    kernels = (use.kernel for use in candidate.kernels)
    return sum(kernel.code_shift for kernel in kernels if isinstance(kernel, GroupedConv))


def with_merged_groups(w: np.ndarray, groups: int, count: int) -> np.ndarray:
    """Return weights (K, C/g, kernel…) with `count` groups made one, filled up with zeros."""
    if count == 1:
        return w
    outputs, inputs, *kernel = w.shape
    each = outputs // groups
    merged = np.zeros((groups // count, count, each, count, inputs, *kernel), w.dtype)
    apart = w.reshape(-1, count, each, inputs, *kernel)
    for number in range(count):
        merged[:, number, :, number] = apart[:, number]
    whole: np.ndarray = merged.reshape(outputs, count * inputs, *kernel)
    return whole
