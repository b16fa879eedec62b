"""Check by simulation, byte for byte, that storage loses no value before its last reader."""

from __future__ import annotations

import numpy as np

from leanconv.graph.onnx_import import read_model
from leanconv.graph.passes import run_passes
from leanconv.operators import Accuracy
from leanconv.planner.lowered_graph import LoweredGraph, all_repeats
from leanconv.planner.lowering import lower_graph
from leanconv.planner.storage import Storage, place
from leanconv.spec.format import aligned
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


def contents(lowered: LoweredGraph) -> dict[str, np.ndarray]:
    """What each byte of each value holds: a number that no other byte of the network has.

    Values that are views of one another have bytes in common.
    """
    numbers = {name: number for number, name in enumerate(lowered.bytes, start=1)}
    found = {}
    for name, size in lowered.bytes.items():
        root, offset = lowered.views.find(name)
        begin = (numbers.get(root, 0) << 40) + offset
        found[name] = np.arange(begin, begin + size)
    return found


def check(lowered: LoweredGraph, storage: Storage | None = None) -> int:
    """Run the calls over owners of bytes instead of numbers; return the bytes of the arena.

    Raises:
        AssertionError: a call reads bytes that hold something else by then, writes over an operand
            that it does not compute in place, over a user's input, or past its buffer.
    """
    storage = storage or place(lowered)
    constants = lowered.constants.bytes
    expected = contents(lowered)
    spaces: dict[Space, np.ndarray] = {"arena": np.zeros(storage.arena_bytes, np.int64)}
    ends = [*lowered.inputs, *lowered.outputs]
    for number, name in enumerate(ends):
        spaces[number] = np.zeros(lowered.bytes[name], np.int64)

    def where(name: str) -> np.ndarray | None:
        if name in constants:
            return None
        assert (name in storage.offsets) != (name in storage.slots), f"{name} has no one place"
        if name in storage.slots:
            slot = storage.slots[name]
            space = spaces[slot.number][slot.offset :]
            assert lowered.bytes[name] <= space.size, f"{name} does not fit the user's array"
            return space[: lowered.bytes[name]]
        start = storage.offsets[name]
        assert (start - lowered.views.find(name)[1]) % 64 == 0
        assert start + lowered.bytes[name] <= storage.arena_bytes, f"{name} is past the arena"
        return spaces["arena"][start : start + lowered.bytes[name]]

    for number, name in enumerate(lowered.inputs):
        spaces[number][:] = expected[name]
        assert storage.slots[name].number == number
    inputs = range(len(lowered.inputs))
    begun: set[str] = set()
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
                assert (source == expected[name]).all(), f"{step.name}: {name} is lost"
                if name != result and np.shares_memory(source, target):
                    assert index in call.in_place, f"{step.name} writes over its operand {name}"
                    assert source.ctypes.data == target.ctypes.data, f"{name} is half overwritten"
            if result in begun:  # a later call of several that write one result
                assert (target == expected[result]).all(), f"{step.name}: {result} is lost"
            target[:] = expected[result]
            begun.add(result)
    for number, name in enumerate(lowered.outputs, start=len(lowered.inputs)):
        assert (spaces[number] == expected[name]).all(), f"output {name} is not whole"
    return storage.arena_bytes


def check_loops(lowered: LoweredGraph, storage: Storage, threads: int) -> int:
    """How many calls run several times; all that these touch, scratch too, is apart in memory.

    Raises:
        AssertionError: two of their buffers share bytes, or an operand passes the end of its own.
    """
    constants = lowered.constants.bytes
    calls = [call for step in lowered.steps for call in step.calls]
    repeated = 0
    for each in all_repeats(lowered.steps):
        inside = range(each.first, each.first + each.calls)
        places: dict[str, tuple[Space, int, int]] = {}
        for number in inside:
            for name in (*calls[number].values, *calls[number].alive):
                root, offset = lowered.views.find(name)
                if name in constants or root in places:
                    continue
                assert offset < lowered.bytes[root] or not lowered.bytes[root]
                size = lowered.bytes[root]
                slot = storage.slots.get(root)
                begin = storage.offsets[root] if slot is None else slot.offset
                places[root] = "arena" if slot is None else slot.number, begin, begin + size
            scratch = aligned(calls[number].kernel.scratch_bytes) * threads
            begin = storage.scratch[number]
            places[f"scratch of {number}"] = "arena", begin, begin + scratch
        for one, (space, begin, end) in places.items():
            if space == "arena" and not one.startswith("scratch"):
                lives = [
                    (buffer.first, buffer.last)
                    for buffer, offset in storage.buffers
                    if offset <= begin and end <= offset + buffer.bytes and not buffer.scratch
                ]
                whole = (first <= inside[0] and inside[-1] <= last for first, last in lives)
                assert any(whole), f"{one} lives in {lives} alone, not from {inside}"
            for other, (beside, start, stop) in places.items():
                both = one.startswith("scratch") and other.startswith("scratch")
                if one == other or both or space != beside:
                    continue
                assert end <= start or stop <= begin, f"{one} and {other} share memory"
        repeated += each.calls
        for name, stride in each.strides.items():
            root, offset = lowered.views.find(name)
            assert offset + (each.times - 1) * stride < lowered.bytes[root], f"{name} moves away"
    return repeated
