"""What a QLinearConv node is to kernels: a problem, formats, constants.

The kernels read and write blocks of channels alone. Where a node's input or output is plain, it is
reordered into a buffer of the node's own; an input of few channels into blocks that are no larger
than what one step of a kernel multiplies.

    bias[k]' = bias[k] - x_zero · sum of w[k]        folded in when the weights are packed

so that kernels multiply the codes as they are. Where a kernel shifts them, to have the signs that
an instruction takes, x_zero is shifted alike (`code_shift`). That holds where no tap is in the
padding: a network has its padding as nodes of their own where it is not zero (`passes.pad_codes`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from leanconv.algorithms import select
from leanconv.algorithms.common.grouped_conv import GroupedConv
from leanconv.algorithms.integer_sums import sum_bits
from leanconv.algorithms.interface import Candidate
from leanconv.algorithms.problem import Problem
from leanconv.codegen.dot import dot_of, group_of, way_of
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import Call, Lowered, PackCall, Packing
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node, number_of
from leanconv.graph.ops.quantised_conv import quantisation_of
from leanconv.graph.ops.requantised import form_of, numbers_of
from leanconv.kernels.reorder import reorder_call
from leanconv.operators.operator import NodeContext
from leanconv.records import cached_property, dataclass
from leanconv.spec import PLAIN, ConvSpec, Format
from leanconv.spec.requantise import Requantise
from leanconv.types import INT32, UINT8, DType, Precision

CONSTANTS = (1, 2, 3, 5)  # inputs that are packed
_COMPILED_BYTES = 16 * 1024  # below this NumPy has packed weights before a call is prepared


def sums_have(node: Node, graph: Graph) -> int:
    """Bits of the sums of products of a node: 26 to 32; 32 where nothing depends on them."""
    w = graph.constants[node.inputs[1]]
    if prod(w.shape[2:]) == 1:
        return 32
    codes = graph.types[node.inputs[0]].dtype
    case = number_of(w), codes
    known = _sum_bits.get(case)
    if known is None:
        if len(_sum_bits) >= _MOST_KNOWN:
            _sum_bits.clear()
        known = _sum_bits[case] = sum_bits(w, codes)
    return known


def _code_shift(chosen: Candidate) -> int:
    """What the kernels of a candidate add to every code of the input."""
    kernels = (use.kernel for use in chosen.kernels)
    return sum(kernel.code_shift for kernel in kernels if isinstance(kernel, GroupedConv))


_sum_bits: dict[tuple[int, DType], int] = {}  # by the weights' number
_MOST_KNOWN = 4096


@dataclass(frozen=True, eq=False)
class QuantisedNode:
    """A node with the problem that its kernels solve.

    Attributes:
        context: the node.
    """

    context: NodeContext

    @property
    def _block(self) -> Format:
        return Format(self.context.target.channel_block(UINT8))

    @cached_property
    def x_form(self) -> Format:
        """The format in which the kernels read the input."""
        graph, x = self.context.graph, self.context.node.inputs[0]
        if self.context.formats[x].block:
            return self._block
        channels, group = graph.types[x].shape[1], group_of(self.precision)
        return Format(group) if channels <= group else self._block

    @property
    def precision(self) -> Precision:
        """Types of codes, weights, sums and results."""
        types, node = self.context.graph.types, self.context.node
        x, w, y = (types[name].dtype for name in (*node.inputs[:2], node.output))
        return Precision(x, w, INT32, y)

    @property
    def merged_groups(self) -> int:
        """How many groups are computed as one, whose other weights are zeros."""
        groups: int = self.context.node.attributes["group"]
        return groups // self.problem.groups

    @cached_property
    def _fills_blocks(self) -> int:
        """How many groups fill whole blocks of channels; all of them where no fewer do."""
        node, types, block = self.context.node, self.context.graph.types, self._block.block
        groups = node.attributes["group"]
        inputs = types[node.inputs[1]].shape[1]
        outputs = types[node.output].shape[1] // groups
        count = 1
        while (inputs * count % block or outputs * count % block) and count < groups:
            count += 1
            while groups % count:
                count += 1
        return count

    @cached_property
    def problem(self) -> Problem:
        """What the kernels compute."""
        alone = self._problem(self.context.node.attributes["group"])
        if self._fills_blocks == 1 or select.is_possible(alone, self.context.target):
            return alone
        return self._problem(alone.groups // self._fills_blocks)

    @property
    def spec(self) -> ConvSpec:
        """The convolution of the node's groups.

        Raises:
            UnsupportedError: its padding is of another code than 0.
        """
        node, types = self.context.node, self.context.graph.types
        x, w, attributes = types[node.inputs[0]], types[node.inputs[1]], node.attributes
        rank = len(x.shape) - 2
        if attributes["x_zero"] and any(attributes["pads"]):
            raise UnsupportedError(
                f"node {node.name!r} (QLinearConv) has padding of code {attributes['x_zero']}; "
                "expected padding of 0, or none behind a Pad"
            )
        return ConvSpec(
            batch=x.shape[0],
            in_channels=w.shape[1] * attributes["group"],  # of x they may be open
            out_channels=w.shape[0],
            size=x.shape[2:],
            kernel=w.shape[2:],
            stride=tuple(attributes["strides"]),
            dilation=tuple(attributes["dilations"]),
            pad_begin=tuple(attributes["pads"][:rank]),
            pad_end=tuple(attributes["pads"][rank:]),
            groups=attributes["group"],
            precision=self.precision,
            bias=self._has_bias,
            residual=bool(node.input(4)),
            requantise=self._requantise,
        )

    def _problem(self, groups: int) -> Problem:
        """The problem of so many groups, each of which is one of the node's, or several."""
        context = self.context
        node, graph, accuracy = context.node, context.graph, context.accuracy
        x, y = graph.types[node.inputs[0]], graph.types[node.output]
        spec = replace(self.spec, groups=groups)
        accesses = Access.of_format(x.shape, self.x_form), Access.of_format(y.shape, self._block)
        problem = Problem.of(spec, *accesses, accuracy.layer_error)
        return replace(
            problem,
            weights_from_dram=accuracy.weights_from_dram,
            any_size=context.any_size,
            sum_bits=sums_have(node, graph),
            folds_shift=True,
        )

    @property
    def _requantise(self) -> Requantise | None:
        quantisation = quantisation_of(self.context.node.attributes)
        if quantisation is None:
            return None
        scales = self.context.graph.constants[self.context.node.input(3)]
        return form_of(quantisation, scales, self.precision.y)

    @property
    def _has_bias(self) -> bool:
        node, precision = self.context.node, self.precision
        dot = dot_of(precision, way_of(precision, self.context.target))
        return bool(node.input(2)) or node.attributes["x_zero"] != 0 or dot.shifted

    @property
    def reorder_cycles(self) -> float:
        """Estimated cycles of bringing plain values into blocks and back."""
        context, costs = self.context, self.context.target.costs
        moved = 0
        for name, form in self._reordered().items():
            kind = context.graph.types[name]
            moved += (form.elements(kind.shape) + kind.elements) * kind.dtype.bytes
        return moved / costs.copy

    def _reordered(self) -> dict[str, Format]:
        """The plain values, with the formats in which kernels take them."""
        node, formats = self.context.node, self.context.formats
        forms = {node.inputs[0]: self.x_form, node.output: self._block}
        if node.input(4):
            forms.setdefault(node.input(4), self._block)
        return {name: form for name, form in forms.items() if not formats[name].block}

    def lowered(self, chosen: Candidate) -> Lowered:
        """The calls of a candidate, with what is plain reordered before and after."""
        node, types = self.context.node, self.context.graph.types
        y_name = node.output
        values = {"x": node.inputs[0], "y": y_name, "residual": node.input(4)}
        temporaries: dict[str, int] = {}
        before: list[Call] = []
        after: list[Call] = []
        for name, form in self._reordered().items():
            kind, own = types[name], f"{y_name}/{name} in blocks"
            temporaries[own] = form.elements(kind.shape) * kind.dtype.bytes
            if name == y_name:
                after.append(reorder_call(kind.shape, kind.dtype, own, name, form, PLAIN))
            else:
                before.append(reorder_call(kind.shape, kind.dtype, name, own, PLAIN, form))
            values = {role: own if held == name else held for role, held in values.items()}
        values.update({role: f"{y_name}/{role}" for role in chosen.constant_bytes})
        for role, size in chosen.temporaries.items():
            values[role] = f"{y_name}/{role}"
            temporaries[values[role]] = size
        calls = []
        for use in chosen.kernels:
            # A tile reads its residual just before it writes the same elements.
            residual = use.roles.index("residual") if "residual" in use.roles else None
            in_place = () if residual is None or use.roles[-1] != "y" else (residual,)
            calls.append(Call(use.kernel, tuple(values[r] for r in use.roles), in_place))
        packings = (self._packing(chosen, values),)
        algorithm = chosen.choice.algorithm
        calls = [*before, *calls, *after]
        return Lowered(tuple(calls), {}, temporaries, algorithm, packings=packings)

    # -- constants -----------------------------------------------------------------------------
    def _packing(self, chosen: Candidate, values: Mapping[str, str]) -> Packing:
        """Weights, bias, scales and the numbers of the quantisation, packed when there is place."""

        @cache
        def calls() -> dict[str, Sequence[PackCall]]:
            found = chosen.packing(self._weights(), self.channels(_code_shift(chosen)))
            return {values[role]: each for role, each in found.items()}

        node, constants = self.context.node, self.context.graph.constants
        names = (node.input(number) for number in CONSTANTS)
        sources = tuple(constants[name] for name in names if name)
        sizes = {values[role]: size for role, size in chosen.constant_bytes.items()}
        return Packing(sizes, calls, self._recipe(chosen), sources)

    def _recipe(self, chosen: Candidate) -> Hashable:
        """How the constants follow from the node's."""
        given = tuple(bool(self.context.node.input(number)) for number in CONSTANTS)
        packing = chosen.packing_recipe(given)
        numbers = _code_shift(chosen), self.merged_groups, self.numbers
        return None if packing is None else (packing, numbers)

    @property
    def numbers(self) -> Hashable:
        """What of the attributes decides constants."""
        attributes = self.context.node.attributes
        return attributes["x_zero"], self._has_bias, quantisation_of(attributes)

    def channels(self, shift: int) -> dict[str, np.ndarray]:
        """What there is beside the weights, by role, for kernels that shift the codes."""
        node, constants = self.context.node, self.context.graph.constants
        found = {}
        if self._has_bias:
            found["bias"] = self._bias(shift)
        if node.input(3):
            scale, affine = constants[node.input(3)], node.input(5)
            found["scale"] = np.vstack([scale, constants[affine]]) if affine else scale
        quantisation = quantisation_of(node.attributes)
        if quantisation is not None:
            found["quantisation"] = numbers_of(quantisation)
        return found

    def _bias(self, shift: int) -> np.ndarray:
        """The bias, with what the input's zero adds to every sum, modulo 2^32."""
        node, constants = self.context.node, self.context.graph.constants
        w, zero = constants[node.inputs[1]], node.attributes["x_zero"] + shift
        bias = constants[node.input(2)] if node.input(2) else np.zeros(len(w), np.int32)
        if not zero:
            return bias
        sums = w.reshape(len(w), -1).sum(axis=1, dtype=np.int64)
        folded: np.ndarray = (bias.astype(np.int64) - zero * sums).astype(np.int32)
        return folded

    def _weights(self) -> np.ndarray:
        """The weights (K, C/g, kernel…), those of groups that are computed as one beside zeros."""
        w, count = self.context.graph.constants[self.context.node.inputs[1]], self.merged_groups
        if count == 1:
            return w
        outputs, inputs, *kernel = w.shape
        each = outputs // self.context.node.attributes["group"]
        merged: np.ndarray = np.zeros(
            (outputs // (each * count), count, each, count, inputs, *kernel), w.dtype
        )
        apart = w.reshape(-1, count, each, inputs, *kernel)
        for number in range(count):
            merged[:, number, :, number] = apart[:, number]
        whole: np.ndarray = merged.reshape(outputs, count * inputs, *kernel)
        return whole
