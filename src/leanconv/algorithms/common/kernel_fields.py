"""The fields of a kernel that follow from problem and target, for all algorithms."""

from __future__ import annotations

from typing import TypedDict

from leanconv.algorithms.problem import Problem
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.target import Target


class Fields(TypedDict):
    """Fields of every kernel of a convolution."""

    batch: int
    window: Window
    x: Access
    y: Access
    dtype: str
    lanes: int
    epilogue: Epilogue


class GroupFields(Fields):
    """And kernels that take any groups: `inputs` and `outputs` are channels of one group."""

    groups: int
    inputs: int
    outputs: int


def common_fields(problem: Problem, target: Target) -> Fields:
    """The fields of a kernel for this problem with whole vectors of the target."""
    return {
        "batch": problem.batch,
        "window": problem.window,
        "x": problem.x,
        "y": problem.y,
        "dtype": problem.dtype,
        "lanes": target.lanes(problem.dtype),
        "epilogue": problem.epilogue,
    }


def group_fields(problem: Problem, target: Target) -> GroupFields:
    """As `common_fields`, with the channels of a group."""
    return {
        **common_fields(problem, target),
        "groups": problem.groups,
        "inputs": problem.group_inputs,
        "outputs": problem.group_outputs,
    }
