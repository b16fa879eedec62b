"""ConvChain: convolutions one after the other, of which only the last one's result is wanted.

BlockChain: chains one after the other, of which some add their own input to their result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar

from leanconv.errors import ModelError
from leanconv.graph.ir import Attributes, TensorType
from leanconv.graph.ops.base import Array, Arrays, Op, Types, array, first, given, single
from leanconv.graph.ops.conv import OPS as CONVOLUTIONS
from leanconv.records import dataclass
from leanconv.spec.activation import Activation

CONV = CONVOLUTIONS["Conv"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class ChainStage:
    """The attributes of one Conv of a chain, as those of a node of its own."""

    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int
    activation: Activation | None

    @property
    def attributes(self) -> dict[str, Any]:
        """As a node of its own would carry them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def stage_inputs(inputs: Sequence[_T | None], stage: int, x: _T, stages: int) -> list[_T | None]:
    """The inputs that a Conv node would have, of one stage of a chain whose inputs these are.

    Args:
        inputs: of the chain: x, residual?, then weights and bias? of each stage.
        stage: its number.
        x: the stage's own input.
        stages: how many there are; the last one adds the residual.
    """
    residual = given(inputs, 1) if stage == stages - 1 else None
    return [x, given(inputs, 2 + 2 * stage), given(inputs, 3 + 2 * stage), residual]


def _stages(attributes: Attributes) -> tuple[ChainStage, ...]:
    stages: tuple[ChainStage, ...] = attributes["stages"]
    if not stages:
        raise ModelError("a chain of no convolutions; expected at least one stage")
    return stages


def _infer(types: Types, attributes: Attributes) -> TensorType:
    x, stages = first(types), _stages(attributes)
    for number, stage in enumerate(stages):
        (x,) = CONV.infer(stage_inputs(types, number, x, len(stages)), stage.attributes)
    return x


def _evaluate(arrays: Arrays, attributes: Attributes) -> Array:
    x, stages = array(arrays), _stages(attributes)
    for number, stage in enumerate(stages):
        (x,) = CONV.evaluate(stage_inputs(arrays, number, x, len(stages)), stage.attributes)
    return x


def _work(types: Types, attributes: Attributes, result: TensorType) -> int:
    del result
    x, stages, total = first(types), _stages(attributes), 0
    assert CONV.work is not None
    for number, stage in enumerate(stages):
        inputs = stage_inputs(types, number, x, len(stages))
        (x,) = CONV.infer(inputs, stage.attributes)
        total += CONV.work(inputs, stage.attributes, (x,))
    return total


@dataclass(frozen=True)
class ChainBlock:
    """One chain of a BlockChain: its convolutions, and whether it adds its own input."""

    stages: tuple[ChainStage, ...]
    adds: bool


def block_inputs(inputs: Sequence[_T | None], first: int, x: _T, block: ChainBlock) -> list[Any]:
    """The inputs that a ConvChain node would have, of one block of a BlockChain.

    Args:
        inputs: of the whole: x, absent, then weights and bias? of each stage of each block.
        first: stages of the blocks before.
        x: the block's own input.
        block: which convolutions it consists of.
    """
    operands = [given(inputs, 2 + 2 * first + i) for i in range(2 * len(block.stages))]
    return [x, x if block.adds else None, *operands]


def _infer_blocks(types: Types, attributes: Attributes) -> TensorType:
    x, stages = first(types), 0
    for block in attributes["blocks"]:
        inputs = block_inputs(types, stages, x, block)
        x = _infer(inputs, {"stages": block.stages})
        stages += len(block.stages)
    return x


def _evaluate_blocks(arrays: Arrays, attributes: Attributes) -> Array:
    x, stages = array(arrays), 0
    for block in attributes["blocks"]:
        inputs = block_inputs(arrays, stages, x, block)
        x = _evaluate(inputs, {"stages": block.stages})
        stages += len(block.stages)
    return x


MOST_STAGES, MOST_BLOCKS = 3, 8
OPS: dict[str, Op] = {
    "ConvChain": single(_infer, _evaluate, 1, 2 + 2 * MOST_STAGES, ("stages",), _work),
    "BlockChain": single(
        _infer_blocks, _evaluate_blocks, 1, 2 + 2 * MOST_STAGES * MOST_BLOCKS, ("blocks",)
    ),
}
