"""The operations of a ConvChain or of a block of a BlockChain, and the chain to fuse."""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Hashable, MutableMapping
from typing import TypeAlias, cast

import numpy as np

from leanconv.algorithms.fused.block import NO_BORDER, Border, ImageRows, rows_access
from leanconv.algorithms.fused.forms import Chain
from leanconv.algorithms.fused.kernel import Constants
from leanconv.algorithms.interface import has_halves
from leanconv.algorithms.problem import Problem, storage_error, sum_error
from leanconv.codegen.geometry import Access
from leanconv.codegen.lowered import Lowered
from leanconv.graph.edit import frozen
from leanconv.graph.halves import infer_stored, stored_half
from leanconv.graph.ir import Graph, Node, TensorType
from leanconv.graph.ops.chain import (
    CONVOLUTIONS,
    IMAGE_CHANNELS,
    STAGES,
    ChainBlock,
    ConvStage,
    block_inputs,
    stage_inputs,
)
from leanconv.kernels.quantised_steps import operands
from leanconv.operators.calls import of_halves, reordered
from leanconv.operators.conv_node import ConvNode, excess_in, precision_of
from leanconv.operators.operator import FormatPolicy, NodeContext, Operator
from leanconv.records import cached_property, dataclass, replace
from leanconv.spec import PLAIN, ConvSpec, Format
from leanconv.types import FLOAT32, SINGLE

Axes: TypeAlias = tuple[int, ...]


def blocks_of(node: Node) -> tuple[ChainBlock, ...]:
    """Return the blocks of a BlockChain, or the one that a ConvChain is."""
    if node.op == "ConvChain":
        return (ChainBlock(node.attributes["stages"], bool(node.input(1))),)
    blocks: tuple[ChainBlock, ...] = node.attributes["blocks"]
    return blocks


@dataclass(frozen=True, eq=False)
class ChainLayers:
    """One block as its operations.

    Attributes:
        nodes: in order: a QuantizeLinear and a Pad of an image, if any, then convolutions, of
            which the depthwise one may read a Pad.
        graph: with the types of the values between them.
        context: the whole chain.
    """

    nodes: tuple[Node, ...]
    graph: Graph
    context: NodeContext

    @cached_property
    def convolutions(self) -> tuple[Node, ...]:
        """The convolutions in order."""
        return tuple(node for node in self.nodes if node.op in CONVOLUTIONS)

    @property
    def before(self) -> tuple[Node, ...]:
        """Nodes before the first convolution, which make and pad the codes of an image."""
        return self.nodes[: self.nodes.index(self.convolutions[0])]

    @property
    def has_codes(self) -> bool:
        """True if the convolutions are QLinearConvs."""
        return self.nodes[-1].op == "QLinearConv"

    def context_of(self, node: Node) -> NodeContext:
        """Return the context in which the operator of one of the nodes takes it.

        Values without a stated format are in blocks; codes of an image lie as the image does.
        """
        context, target = self.context, self.context.target
        formats, codes = dict(context.formats), {each.output for each in self.before}
        for name in (*node.inputs, *node.outputs):
            if name and name not in self.graph.constants and name not in formats:
                block = target.channel_block(self.graph.types[name].dtype)
                image = self.nodes[0].inputs[0]
                formats[name] = formats[image] if name in codes else Format(block)
        return NodeContext(node, self.graph, formats, target, context.accuracy)

    @property
    def _blocked(self) -> Format:
        """Format of the result, and of the residual."""
        dtype = self.graph.types[self.nodes[-1].output].dtype
        return Format(self.context.target.channel_block(dtype))

    @cached_property
    def chain(self) -> Chain:
        """The block as fused kernels take it."""
        convs, graph, context = self.convolutions, self.graph, self.context
        specs = [self._spec(conv) for conv in convs]
        x, y, image = self.nodes[0].inputs[0], convs[-1].output, self._image
        if image is None:
            access = Access.of_format(graph.types[x].shape, self.x_form)
        else:
            access = rows_access(0, image.width, IMAGE_CHANNELS)
        return Chain(
            specs[0] if len(specs) > 2 else None,
            specs[-2],
            specs[-1],
            access,
            Access.of_format(graph.types[y].shape, self._blocked),
            context.any_size,
            image,
            self._border,
            tuple(stage for stage, _ in self._tables.values()),
            tuple(excess_in(conv, graph, context.target) for conv in convs if self.has_codes),
        )

    @property
    def adds_itself(self) -> bool:
        """True if the last convolution adds the block's input."""
        return self.nodes[0].inputs[0] in self.nodes[-1].inputs[1:]

    @property
    def x_form(self) -> Format:
        """The format in which fused kernels read the input."""
        first = self.context_of(self.nodes[0])
        form = first.formats[self.nodes[0].inputs[0]]
        if self._image is not None:
            return PLAIN
        if not self.has_codes or form.block:
            return form
        return self._blocked if self.adds_itself else ConvNode(first).forms[first.node.inputs[0]]

    @property
    def images(self) -> dict[str, str]:
        """The values that the chain's kernels read and write, by role."""
        node = self.context.node
        return {"x": node.inputs[0], "y": node.output, "residual": node.input(1)}

    @property
    def forms(self) -> dict[str, Format]:
        """Formats in which the chain's kernels take `images`; codes may be plain in the graph."""
        images, formats = self.images, self.context.formats
        others = {name: formats[name] for name in (images["y"], images["residual"]) if name}
        if self.has_codes:
            others = dict.fromkeys(others, self._blocked)
        return {**others, images["x"]: self.x_form}

    @property
    def moved_bytes(self) -> int:
        """Bytes that are read and written to reorder the values of `images`."""
        types, forms = self.graph.types, reordered(self.context, self.forms)
        sizes = (f.elements(types[n].shape) * types[n].dtype.bytes for n, f in forms.items())
        return 2 * sum(sizes)

    @cached_property
    def _image(self) -> ImageRows | None:
        """Conversion of rows of an image to rows of codes; None: the first convolution reads x.

        An image lies in planes, or is brought into them if its codes are made here.
        """
        convs, types, name = self.convolutions, self.graph.types, self.nodes[0].inputs[0]
        x, codes = types[name], types[convs[0].inputs[0]]
        if not self.has_codes or len(convs) < 3 or x.shape[1] > IMAGE_CHANNELS or self.adds_itself:
            assert not self.before, "nobody makes the codes of the image"
            return None
        if self.context_of(self.nodes[0]).formats[name].block and not self.before:
            return None
        around, fill = (0,) * 8, 0.0
        for node in self.before:
            if node.op == "Pad":
                around, fill = node.attributes["pads"], node.attributes["value"]
        pads, size = (around[2], around[3], around[7]), (x.shape[2], x.shape[3])
        lanes = self.context.target.lanes(FLOAT32)
        return ImageRows(x.dtype, codes.dtype, x.shape[1], size, pads, int(fill), lanes)

    @property
    def _border(self) -> Border:
        """Rows and columns of padding round the input of the depthwise convolution."""
        between = [n for n in self.nodes[len(self.before) :] if n.op == "Pad"]
        if not between:
            return NO_BORDER
        around, fill = between[0].attributes["pads"], between[0].attributes["value"]
        return Border(around[2], around[3], around[7], around[6], int(fill))

    @property
    def _tables(self) -> dict[str, tuple[str, str]]:
        """Stage and table name of each convolution whose codes are looked up, by node."""
        readers = {node.inputs[0]: node for node in self.nodes}
        stages = zip(("depthwise", "expand"), self.convolutions[-2::-1], strict=False)
        behind = ((conv.key, stage, readers[conv.output]) for stage, conv in stages)
        return {key: (stage, node.inputs[1]) for key, stage, node in behind if node.op == "Lookup"}

    def _spec(self, conv: Node) -> ConvSpec:
        spec = ConvNode(self.context_of(conv)).spec
        # What is stored in halves is computed in float32.
        return replace(spec, precision=SINGLE) if has_halves(spec.precision) else spec

    def on_halves(self, lowered: Lowered) -> Lowered:
        """Return the chain's kernels, made for float32, on values and weights in halves."""
        node, graph = self.context.node, self.context.graph
        half = stored_half(node, graph)
        if half is None:
            return lowered
        return of_halves(lowered, graph, half, lambda name: name.endswith(".w"))

    @property
    def in_halves(self) -> bool:
        """True if some value of the chain is stored in halves."""
        return stored_half(self.context.node, self.context.graph) is not None

    @property
    def stored_error(self) -> float:
        """Relative error that storage in halves adds to that of the convolutions."""
        x, y = (
            self.graph.types[name].dtype
            for name in (self.nodes[0].inputs[0], self.nodes[-1].output)
        )
        return math.sqrt(len(self.convolutions)) * storage_error(precision_of(x, x, y))

    # -- constants -----------------------------------------------------------------------------
    @property
    def constants(self) -> list[Constants]:
        """Arrays that fused kernels pack, by role: of QuantizeLinears, then of convolutions."""
        quantised = [node for node in self.nodes if node.op == "QuantizeLinear"]
        return [self._numbers(n) for n in quantised] + [self._own(n) for n in self.convolutions]

    def _own(self, conv: Node) -> Constants:
        made = ConvNode(self.context_of(conv))
        own, channels = {"w": made.weights}, made.channels
        if conv.key in self._tables:
            own["table"] = self.graph.constants[self._tables[conv.key][1]]
        return lambda shift: {**own, **channels(shift)}

    def _numbers(self, node: Node) -> Constants:
        """Scale, zero and bounds of a QuantizeLinear."""
        given = [each for each in operands(node, self.graph) if isinstance(each, np.ndarray)]
        numbers = {"numbers": np.array([each.item() for each in given], np.float32)}
        return lambda _: numbers

    @property
    def sources(self) -> tuple[np.ndarray, ...]:
        """Constants of the graph that packed constants are made of."""
        names = (node.input(i) for node in self.nodes for i in STAGES[node.op].CONSTANTS)
        return tuple(self.graph.constants[name] for name in names if name)

    @property
    def numbers(self) -> Hashable:
        """Attributes that packed constants depend on beside `sources`."""
        bounds = [tuple(sorted(n.attributes.items())) for n in self.before]
        convs = (ConvNode(self.context_of(conv)).numbers for conv in self.convolutions)
        return (*bounds, *convs)


def layers_of(context: NodeContext) -> list[ChainLayers]:
    """Return the blocks of a BlockChain, or the one of a ConvChain."""
    node, graph = context.node, context.graph
    types: dict[str, TensorType] = {}
    open_axes: dict[str, Axes] = {}
    # A view: copying the types for every chain would take time quadratic in the graph.
    wide = replace(
        graph,
        types=ChainMap(types, cast(MutableMapping[str, TensorType], graph.types)),
        open_axes=ChainMap(open_axes, cast(MutableMapping[str, Axes], graph.open_axes)),
    )
    blocks, x, result, count, read = blocks_of(node), node.inputs[0], [], 0, 0
    half = stored_half(node, graph)
    for place, block in enumerate(blocks, 1):
        inputs = block_inputs(node.inputs, read, x, block)
        read += block.operands
        if node.op == "ConvChain":
            inputs[1] = node.input(1)
        nodes: list[Node] = []
        for number, stage in enumerate(block.stages):
            out = f"{node.output}/{count}"
            while out in graph.types:
                out += "'"
            last = place == len(blocks) and number == len(block.stages) - 1
            out = node.output if last else out
            names = [name or "" for name in stage_inputs(inputs, number, x, block.stages)]
            inner = Node(stage.OP, tuple(names), (out,), frozen(stage.attributes), node.name)
            if out not in graph.types:
                types[out] = infer_stored(inner, wide, half)
                open_axes[out] = wide.open_axes.get(x, ())
            nodes.append(inner)
            x, count = out, count + 1
        result.append(ChainLayers(tuple(nodes), wide, context))
    return result


class ChainOperator(Operator):
    """Convolutions that are computed together: blocks of channels in and out."""

    format_policy = FormatPolicy.BLOCKED_ONLY

    def accepts_blocked(self, node: Node, graph: Graph, block: int) -> bool:
        """True: fused kernels take nothing else."""
        del node, graph, block
        return True

    def accepts_mixed(self, node: Node) -> bool:
        """True if a first convolution reads the input, and nothing else does.

        Only that convolution takes both formats. A residual is read as y lies, so a first block
        that adds its own input needs that in blocks.
        """
        first = blocks_of(node)[0]
        itself = first.adds and (node.op == "BlockChain" or node.input(1) == node.inputs[0])
        return len(first.convolutions) > 2 and not itself

    def may_be_last(self, node: Node, graph: Graph) -> tuple[str, ...]:
        """Return the input if only a first convolution of floats reads it."""
        del graph
        reads = node.op == "ConvChain" and self.accepts_mixed(node) and not self.takes_codes(node)
        return node.inputs[:1] if reads else ()

    def takes_codes(self, node: Node) -> bool:
        """True if the convolutions are QLinearConvs."""
        return blocks_of(node)[0].stages[-1].OP == "QLinearConv"

    def packed_inputs(self, node: Node) -> tuple[str, ...]:
        """Return all constants of the convolutions."""
        packed, place = list[str](), 2
        for stage in (stage for block in blocks_of(node) for stage in block.stages):
            count = len(stage.CONSTANTS)
            if isinstance(stage, ConvStage):
                packed += node.inputs[place : place + count]
            place += count
        return tuple(packed)


def plain_error(spec: ConvSpec) -> float:
    """Return the expected error of one convolution of a fused chain, which makes plain sums."""
    access = Access.planes(spec.input_shape), Access.planes(spec.output_shape)
    return sum_error(Problem.of(spec, *access)) if spec.precision.x.is_float else 0.0
