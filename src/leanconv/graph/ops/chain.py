"""ConvChain: convolutions one after the other, of which only the last one's result is wanted.

BlockChain: chains one after the other, of which some add their own input to their result. The
convolutions are all Convs, or all QLinearConvs, which give codes; before the first of these codes
may be made of floats, and padded, and behind each but the last one looked up in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, first, given, single
from leanconv.graph.ops.conv import OPS as CONV
from leanconv.graph.ops.movement import OPS as MOVEMENT
from leanconv.graph.ops.quantised import CODES
from leanconv.graph.ops.quantised import OPS as CODE_OPS
from leanconv.graph.ops.quantised_layers import OPS as QUANTISED
from leanconv.records import dataclass
from leanconv.spec.activation import Activation
from leanconv.spec.requantise import ResidualCodes
from leanconv.types import FLOATS, INT32, DType

_T = TypeVar("_T")


@dataclass(frozen=True)
class Stage:
    """The attributes of one operation of a chain, as those of a node of its own."""

    OP = ""
    CONSTANTS = tuple[int, ...]()  # inputs of a node of its own that are constants

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes as those of a node of its own."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class QuantizeStage(Stage):
    """A QuantizeLinear: scale, zero."""

    OP = "QuantizeLinear"
    CONSTANTS = (1, 2)

    axis: int
    low: int | None = None
    high: int | None = None

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes as those of a node of its own: bounds where there are any."""
        return {name: value for name, value in super().attributes.items() if value is not None}


@dataclass(frozen=True)
class PadStage(Stage):
    """A Pad."""

    OP = "Pad"

    pads: tuple[int, ...]
    mode: str
    value: float


@dataclass(frozen=True)
class LookupStage(Stage):
    """A Lookup: its table."""

    OP = "Lookup"
    CONSTANTS = (1,)


@dataclass(frozen=True)
class ConvStage(Stage):
    """A convolution."""

    RESIDUAL = 0  # its input that is added

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int


@dataclass(frozen=True)
class ChainStage(ConvStage):
    """A Conv: weights, bias?."""

    OP = "Conv"
    CONSTANTS = (1, 2)
    RESIDUAL = 3

    activation: Activation | None


@dataclass(frozen=True)
class CodeStage(ConvStage):
    """A QLinearConv: weights, bias?, scale, numbers behind an activation?."""

    OP = "QLinearConv"
    CONSTANTS = (1, 2, 3, 5)
    RESIDUAL = 4

    x_zero: int
    y_zero: int
    low: int
    high: int
    dtype: DType
    residual: ResidualCodes | None
    activation: Activation | None


CONVOLUTIONS: Mapping[str, type[ChainStage] | type[CodeStage]] = {
    "Conv": ChainStage,
    "QLinearConv": CodeStage,
}
STAGES: Mapping[str, type[Stage]] = {
    "QuantizeLinear": QuantizeStage,
    "Pad": PadStage,
    "Lookup": LookupStage,
    **CONVOLUTIONS,
}


_OPS: Mapping[str, Op] = {**CODE_OPS, **MOVEMENT, **CONV, **QUANTISED}


def stage_inputs(
    inputs: Sequence[_T | None], number: int, x: _T, stages: Sequence[Stage]
) -> list[_T | None]:
    """The inputs that a node of its own would have, of one stage of a chain.

    Args:
        inputs: of the chain: x, residual?, then the constants of each stage.
        number: of the stage.
        x: the stage's own input.
        stages: all of them; the last one adds the residual.
    """
    own, before = stages[number], sum(len(stage.CONSTANTS) for stage in stages[:number])
    found: dict[int, _T | None] = {0: x}
    for index, place in enumerate(own.CONSTANTS, 2 + before):
        found[place] = given(inputs, index)
    if number == len(stages) - 1 and isinstance(own, ConvStage):
        found[own.RESIDUAL] = given(inputs, 1)
    return [found.get(place) for place in range(max(found) + 1)]


def _stages(attributes: Attributes) -> tuple[Stage, ...]:
    stages: tuple[Stage, ...] = attributes["stages"]
    if not stages:
        raise ModelError("a chain of no convolutions; expected at least one stage")
    return stages


def _infer(types: Types, attributes: Attributes) -> TensorType:
    x, stages = first(types), _stages(attributes)
    for number, stage in enumerate(stages):
        inputs = stage_inputs(types, number, x, stages)
        (x,) = _OPS[stage.OP].infer(inputs, stage.attributes)
    return x


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    x, stages = array(arrays), _stages(attributes)
    for number, stage in enumerate(stages):
        inputs = stage_inputs(arrays, number, x, stages)
        (x,) = _OPS[stage.OP].evaluate(inputs, stage.attributes)
    return x


def _work(types: Types, attributes: Attributes, result: TensorType) -> int:
    del result
    x, stages, total = first(types), _stages(attributes), 0
    for number, stage in enumerate(stages):
        op, inputs = _OPS[stage.OP], stage_inputs(types, number, x, stages)
        (x,) = op.infer(inputs, stage.attributes)
        if op.work is not None:
            total += op.work(inputs, stage.attributes, (x,))
    return total


@dataclass(frozen=True)
class ChainBlock:
    """One chain of a BlockChain: its convolutions, and whether it adds its own input."""

    stages: tuple[Stage, ...]
    adds: bool

    @property
    def convolutions(self) -> tuple[ConvStage, ...]:
        """The stages that are convolutions."""
        return tuple(stage for stage in self.stages if isinstance(stage, ConvStage))

    @property
    def operands(self) -> int:
        """Inputs of a node of its own beside x and the residual."""
        return sum(len(stage.CONSTANTS) for stage in self.stages)


def block_inputs(inputs: Sequence[_T | None], first: int, x: _T, block: ChainBlock) -> list[Any]:
    """The inputs that a ConvChain node would have, of one block of a BlockChain.

    Args:
        inputs: of the whole: x, absent, then what each stage of each block reads.
        first: inputs that stages of the blocks before read.
        x: the block's own input.
        block: which convolutions it consists of.
    """
    operands = [given(inputs, 2 + first + i) for i in range(block.operands)]
    return [x, x if block.adds else None, *operands]


def _infer_blocks(types: Types, attributes: Attributes) -> TensorType:
    x, read = first(types), 0
    for block in attributes["blocks"]:
        inputs = block_inputs(types, read, x, block)
        x = _infer(inputs, {"stages": block.stages})
        read += block.operands
    return x


def _evaluate_blocks(arrays: Arrays, attributes: Attributes) -> Array:
    x, read = array(arrays), 0
    for block in attributes["blocks"]:
        inputs = block_inputs(arrays, read, x, block)
        x = _evaluate(inputs, {"stages": block.stages})
        read += block.operands
    return x


IMAGE_CHANNELS = 4  # most of an image whose codes are made in a chain
MOST_CONVOLUTIONS, MOST_BLOCKS = 3, 8
_TYPES = (*FLOATS, *CODES, INT32)
_FACTS: dict[str, Any] = {"dtypes": _TYPES, "halves": "rounded", "convolves": True}
OPS: dict[str, Op] = {
    "ConvChain": single(
        _infer,
        _evaluate,
        "x, residual?, constants of each stage...; stages: a Stage for each",
        ("stages",),
        _work,
        routes="chain",
        **_FACTS,
    ),
    "BlockChain": single(
        _infer_blocks,
        _evaluate_blocks,
        "x, absent?, constants of each stage of each block...; blocks: ChainBlocks",
        ("blocks",),
        **_FACTS,
    ),
}
