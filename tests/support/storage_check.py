"""Check by simulation, byte for byte, that storage loses no value before its last reader."""

from __future__ import annotations

import numpy as np

from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.operators import Accuracy
from leanconv.planner.lowering import LoweredGraph, lower_graph
from leanconv.planner.storage import Storage, place
from leanconv.target import Target

Space = int | str  # the arena, or the number of a user's array


def lowered_network(
    model: bytes, target: Target, batch: int = 1, dtype: str | None = None
) -> LoweredGraph:
    """Import, bind, run the passes and lower, as `load` does."""
    read = read_model(model)
    shapes = {
        each.name: tuple(n if isinstance(n, int) else batch for n in each.shape or ())
        for each in read.inputs
    }
    return lower_graph(run_passes(read.bind(shapes, dtype=dtype)), target, Accuracy(1e-6))


def contents(lowered: LoweredGraph) -> dict[str, str]:
    """Values that are the same bytes because one is a view of the other, by a common name."""
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        while parent.get(name, name) != name:
            name = parent[name]
        return name

    for view, of in lowered.views.items():
        a, b = find(view), find(of)
        if a != b:
            parent[a] = b
    names = {*lowered.bytes, *lowered.views, *lowered.views.values()}
    return {name: find(name) for name in names}


def check(lowered: LoweredGraph, storage: Storage | None = None) -> int:
    """Run the calls over owners of bytes instead of numbers; return the bytes of the arena.

    Raises:
        AssertionError: a call reads bytes that hold something else by then, writes over an operand
            that it does not compute in place, over a user's input, or past its buffer.
    """
    storage = storage or place(lowered)
    constants = lowered.constants.bytes
    same = contents(lowered)
    numbers = {name: i for i, name in enumerate(sorted(set(same.values())), start=1)}
    spaces: dict[Space, np.ndarray] = {"arena": np.zeros(storage.arena_bytes, np.int32)}
    ends = [*lowered.inputs, *lowered.outputs]
    for number, name in enumerate(ends):
        spaces[number] = np.zeros(lowered.bytes[name], np.int32)

    def where(name: str) -> np.ndarray | None:
        if name in constants:
            return None
        assert (name in storage.offsets) != (name in storage.slots), f"{name} has no one place"
        if name in storage.slots:
            space = spaces[storage.slots[name].number]
            assert lowered.bytes[name] <= space.size, f"{name} does not fit the user's array"
            return space[: lowered.bytes[name]]
        start = storage.offsets[name]
        assert start % 64 == 0
        assert start + lowered.bytes[name] <= storage.arena_bytes, f"{name} is past the arena"
        return spaces["arena"][start : start + lowered.bytes[name]]

    for number, name in enumerate(lowered.inputs):
        spaces[number][:] = numbers[same[name]]
        assert storage.slots[name].number == number
    inputs = range(len(lowered.inputs))
    begun: set[str] = set()
    for step in lowered.steps:
        for call in step.calls:
            result = call.values[-1]
            target = where(result)
            assert target is not None, f"{step.name} writes to a constant"
            slot = storage.slots.get(result)
            assert slot is None or slot.number not in inputs, f"{step.name} writes to an input"
            for index, name in enumerate(call.values[:-1]):
                source = where(name)
                if source is None:
                    continue
                assert (source == numbers[same[name]]).all(), f"{step.name}: {name} is lost"
                if name != result and np.shares_memory(source, target):
                    assert index in call.in_place, f"{step.name} writes over its operand {name}"
                    assert source.ctypes.data == target.ctypes.data, f"{name} is half overwritten"
            if same[result] in begun:  # a later call of several that write one result
                assert (target == numbers[same[result]]).all(), f"{step.name}: {result} is lost"
            target[:] = numbers[same[result]]
            begun.add(same[result])
    for number, name in enumerate(lowered.outputs, start=len(lowered.inputs)):
        assert (spaces[number] == numbers[same[name]]).all(), f"output {name} is not whole"
    return storage.arena_bytes
