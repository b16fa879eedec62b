"""The fields of a kernel that follow from problem and target, for all algorithms."""

from __future__ import annotations

from typing import TypedDict

from leanconv.algorithms.problem import Problem
from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window
from leanconv.target import Target
from leanconv.types import Precision


class GroupFields(TypedDict):
    """Fields of a `GroupedConv` with lanes."""

    batch: int
    groups: int
    inputs: int
    outputs: int
    window: Window
    x: Access
    y: Access
    precision: Precision
    lanes: int
    epilogue: Epilogue


def group_fields(problem: Problem, target: Target) -> GroupFields:
    """The fields of a kernel for this problem with whole vectors of the target."""
    return {
        "batch": problem.batch,
        "groups": problem.groups,
        "inputs": problem.group_inputs,
        "outputs": problem.group_outputs,
        "window": problem.window,
        "x": problem.x,
        "y": problem.y,
        "precision": problem.precision,
        "lanes": problem.lanes(target),
        "epilogue": problem.epilogue,
    }
