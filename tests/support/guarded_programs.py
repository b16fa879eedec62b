"""A mode of the whole test session: every buffer that a kernel is given lies between guard pages.

With TEST_GUARDED=end (or start) in the environment, each buffer ends (or begins) at a page that
nobody may touch: the user's arrays, packed weights, each value in the arena, each thread's scratch.

Nothing in `src` knows of this. The mode replaces the memory of `Block`, and `Program` where plans,
networks and packing make theirs: a `GuardedProgram` is told how large each operand is, has memory
of its own for all of them, and copies what its caller gives and gets, before and after a run.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import pytest

from leanconv.algorithms import Candidate
from leanconv.api import compiled_conv, compiled_graph, gradient_part, layer_plan
from leanconv.api.gradient_part import GradientPart
from leanconv.api.layer_plan import CompiledLayer
from leanconv.codegen.lowered import PackCall
from leanconv.planner import (
    compiled_network,
    packing,
    tuner,
    weight_streaming,
    weights,
)
from leanconv.planner.arena import PlacedBuffers
from leanconv.planner.lowered_graph import ConstantPool, LoweredGraph
from leanconv.planner.storage import Reading, Storage
from leanconv.planner.weight_streaming import Layout
from leanconv.runtime import native
from leanconv.runtime.memory import ArenaPart, Block
from leanconv.runtime.portable import (
    PortableProgram,
    RepeatedStages,
    StreamedConstant,
    linked_stages,
)
from leanconv.runtime.program import Place, Program, Sized, Slot, Stage
from leanconv.runtime.segmented_program import Files, StreamProgram
from leanconv.spec.format import ALIGNMENT, aligned_offsets
from support import gradients, guard_pages
from support.guard_pages import Region

_SCRATCH, _STRIDE = 4, 5  # words of a stage in a program's table


@dataclass
class Sizes:
    """How many bytes the operands of a program have.

    Attributes:
        slots: of each of the caller's arrays; none where they have guards already.
        given: of what is read and stays the same, by address.
        made: of what is written for somebody who reads it at this address.
        between: of what only kernels read and write, by address.
        values: the buffers of an arena.
        begins: where the memory of what is read from both sides of an operand begins.
    """

    slots: Sequence[int] = ()
    given: Mapping[int, int] = field(default_factory=dict)
    made: Mapping[int, int] = field(default_factory=dict)
    between: Mapping[int, int] = field(default_factory=dict)
    values: ArenaValues | Temporaries | None = None
    begins: Mapping[int, int] = field(default_factory=dict)


class ArenaValues:
    """The buffers of an arena: how many bytes of each its values take, without padding.

    Args:
        lowered: the network.
        storage: where its values are.
        read: the weights that a run reads into it.
    """

    def __init__(self, lowered: LoweredGraph, storage: Storage, read: Sequence[Reading]) -> None:
        self._buffers = storage.buffers
        self.bytes: dict[str, int] = {each.name: each.bytes for each in read}
        calls = [call for step in lowered.steps for call in step.calls]
        for time, call in enumerate(calls):
            for name in call.values:
                if name in storage.offsets:
                    place = storage.offsets[name]
                    buffer, start = self.find(time, place)
                    end = place - start + lowered.bytes[name]
                    own = lowered.bytes.get(buffer, 0)  # pieces of what is packed have none
                    self.bytes[buffer] = max(self.bytes.get(buffer, own), end)

    def find(self, time: int, offset: int) -> tuple[str, int]:
        """The buffer that holds a byte of the arena during a call, and where it begins."""
        for buffer, start in self._buffers:
            alive = buffer.first <= time <= buffer.last and not buffer.scratch
            if alive and start <= offset < start + max(1, buffer.bytes):
                return buffer.name, start
        raise AssertionError(f"call {time} has no value at byte {offset} of the arena")


class Temporaries:
    """The buffers of a candidate's arena: each temporary has one."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        places, _ = aligned_offsets(sizes)
        self.bytes = {str(places[role]): size for role, size in sizes.items()}

    def find(self, time: int, offset: int) -> tuple[str, int]:
        """The buffer that begins there."""
        del time
        return str(offset), offset


class GuardedProgram(Program):
    """A program whose operands and scratch all lie between guard pages.

    Args:
        stages, library, slots, scratch, scratch_stride, threads, paced, arena: as of `Program`.
        sizes: of the operands.

    Attributes:
        regions: the memory of all of them.
        addresses: where the operands of all stages are, the caller's arrays apart.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        library: Any,
        slots: int,
        scratch: int,
        scratch_stride: int,
        threads: int,
        paced: bool = True,
        arena: ArenaPart | None = None,
        *,
        sizes: Sizes,
    ) -> None:
        moved = self._begin(stages, sizes)
        part = None if arena is None else _AtZero(arena)
        super().__init__(moved, library, slots, scratch, scratch_stride, threads, paced, part)
        self._complete(stages)

    def _begin(self, stages: Sequence[Stage], sizes: Sizes) -> list[Stage]:
        """The stages with their operands between guards."""
        self._sizes = sizes
        self._at: dict[object, Region] = {}  # by address, or by the name of an arena's buffer
        self._slots: list[Region] = []  # made with the first run: plans may be larger than memory
        moved = [self._moved(stage, time) for time, stage in enumerate(stages)]
        operands = [operand for stage in moved for operand in stage.operands]
        self.addresses = [
            operand.offset if isinstance(operand, Place) else operand
            for operand in operands
            if not isinstance(operand, Slot)
        ]
        return moved

    def _complete(self, stages: Sequence[Stage]) -> None:
        """Put what is no operand between guards, and come between this and native code."""
        sizes = self._sizes
        results = (each for s in stages for each in s.operands[-s.kernel.result_count :])
        self._written = {operand.number for operand in results if isinstance(operand, Slot)}
        self._given = [address for address in sizes.given if address in self._at]
        self._made = [address for address in sizes.made if address in self._at]
        self._scratches: list[Region] = []
        for number, stage in enumerate(stages):
            if stage.kernel.scratch_bytes:
                self._guard_scratch(number, stage.kernel.scratch_bytes)
        self._callers: list[int] = []
        self._inner, self._native = self._native, _Between(self)

    @property
    def regions(self) -> list[Region]:
        """All memory but the threads' scratch."""
        return [*self._slots, *self._at.values()]

    def _moved(self, stage: Stage, time: int) -> Stage:
        operands = tuple(self._operand(operand, time) for operand in stage.operands)
        return replace(stage, operands=operands, scratch=None)

    def _operand(self, operand: int | Slot | Place, time: int) -> int | Slot | Place:
        sizes = self._sizes
        if isinstance(operand, Slot):
            return operand
        if isinstance(operand, Place):
            assert sizes.values is not None
            name, start = sizes.values.find(time, operand.offset)
            # Its kernels also serve the user's arrays, which are aligned to one element.
            region = self._region(name, sizes.values.bytes[name], 1)
            return Place(region.address + operand.offset - start)
        begin = sizes.begins.get(operand, operand)
        for known in (sizes.given, sizes.made, sizes.between):
            if begin in known:
                region = self._region(begin, known[begin], min(ALIGNMENT, begin & -begin))
                return region.address + operand - begin
        raise AssertionError(f"an operand of call {time} has no known size")

    def _region(self, key: object, size: int, alignment: int) -> Region:
        if key not in self._at:
            self._at[key] = Region(size, alignment)
        return self._at[key]

    def _guard_scratch(self, number: int, size: int) -> None:
        """Give each thread scratch between guards, at equal distances."""
        region = Region(size, ALIGNMENT, count=self.threads)
        self._scratches.append(region)
        for entry in range(self._entries[number], self._entries[number + 1]):
            first = entry * native.STAGE_WORDS
            self._table[first + _SCRATCH] = region.address
            self._table[first + _STRIDE] = region.stride

    def enter(self) -> None:
        """Bring what the caller gives into the regions, and let operands be these."""
        self._slots = self._slots or [Region(size) for size in self._sizes.slots]
        self._callers = [
            self._arguments[places[0][0]] - places[0][1] if places else 0
            for places in self._patches[: len(self._slots)]
        ]
        for number, region in self._each_slot():
            ctypes.memmove(region.address, self._callers[number], region.data.size)
            self._point(number, region.address)
        for address in self._given:
            ctypes.memmove(self._at[address].address, address, self._at[address].data.size)

    def leave(self) -> None:
        """Bring what was made to the caller, and check the rest.

        Raises:
            AssertionError: bytes beside a buffer were changed, or an input was.
        """
        written = {self._callers[number] for number in self._written if self._slots}
        for number, region in self._each_slot():
            caller, size = self._callers[number], region.data.size
            if caller in written:
                ctypes.memmove(caller, region.address, size)
            else:
                given = (ctypes.c_char * size).from_address(caller)
                same = np.array_equal(region.data, np.frombuffer(given, np.uint8))
                assert same, f"the input {number} was changed"
            self._point(number, caller)
        for address in self._made:
            ctypes.memmove(address, self._at[address].address, self._at[address].data.size)
        for region in (*self.regions, *self._scratches):
            region.check()

    def _each_slot(self) -> Iterator[tuple[int, Region]]:
        """The caller's arrays with their regions: one for a result in an operand's place."""
        first: dict[tuple[int, int], Region] = {}
        for number, region in enumerate(self._slots):
            if self._callers[number]:
                yield number, first.setdefault((self._callers[number], region.data.size), region)

    def _point(self, number: int, address: int) -> None:
        for position, offset in self._patches[number]:
            self._arguments[position] = address + offset


class GuardedStreamProgram(GuardedProgram, StreamProgram):
    """The same of a program that reads weights: they lie between guards, too."""

    def __init__(
        self,
        stages: Sequence[Stage],
        library: Any,
        slots: int,
        threads: int,
        arena: ArenaPart,
        repeats: Sequence[RepeatedStages],
        loads: Sequence[StreamedConstant],
        files: Files,
        *,
        sizes: Sizes,
    ) -> None:
        assert sizes.values is not None
        moved, found = self._begin(stages, sizes), []
        for load in loads:
            name, _ = sizes.values.find(load.needed, load.offset)
            found.append(replace(load, offset=self._at[name].address))
        given = moved, library, slots, threads, _AtZero(arena), repeats, found, files
        StreamProgram.__init__(self, *given)
        self._complete(stages)


class ToldProgram(GuardedProgram):
    """The same of a program that is told where its constants are: each lies between guards.

    Args:
        places: where they begin in the block that a run is given, in order.
    """

    def __init__(self, *given: Any, sizes: Sizes, places: Sequence[int]) -> None:
        super().__init__(*given, sizes=sizes)
        self._told = places

    def run(self, addresses: Sequence[int], sized: Sized | None = None) -> int:
        assert sized is None
        *ends, block = addresses
        return super().run([*ends, *(block + place for place in self._told)])


class _Between:
    """The entry points of native code, with copies before and after."""

    def __init__(self, program: GuardedProgram) -> None:
        self._program = program

    def run(self, header: int) -> int:
        return int(self._called("run", header))

    def run_alone(self, header: int) -> None:
        self._called("run_alone", header)

    def _called(self, name: str, header: int) -> Any:
        program = self._program
        program.enter()
        result = getattr(program._inner, name)(header)
        program.leave()
        return result


class _AtZero:
    """A part of an arena whose places are addresses."""

    def __init__(self, part: ArenaPart) -> None:
        self.arena, self._part = part.arena, part

    def address(self) -> int:
        self._part.address()
        return 0


_pending = threading.local()  # `sizes` of the next program, `slots` of the next plan
# Programs that are told where their constants are, with what these and the arena's buffers take.
_made: dict[int, tuple[PortableProgram, dict[int, int], Any]] = {}
_weights: dict[int, int] = {}  # of all networks: the bytes of each constant, by address


def install(patch: pytest.MonkeyPatch, side: str) -> None:
    """Let all programs be guarded from now on, until the patch is undone.

    Args:
        patch: keeps what is replaced.
        side: where buffers meet a guard, one of `guard_pages.SIDES`.
    """
    patch.setattr(guard_pages, "_side", [])
    guard_pages.use(side)
    patch.setattr(Block, "__init__", _block_of(Block.__init__))
    patch.setattr(Block, "view", _view)
    for module in (compiled_network, packing):
        patch.setattr(module, "Program", _program)
    patch.setattr(compiled_network, "StreamProgram", _stream_program)
    # Sizes of all arrays are those of the plan: what is counted in a run has its whole room.
    patch.setattr(compiled_network, "sized_results", lambda program, calls: {})
    patch.setattr(weight_streaming, "place", _placing(weight_streaming.place))
    patch.setattr(compiled_network, "keep_constants", _keeping(compiled_network.keep_constants))
    patch.setattr(weights, "fill_weights", _filling(weights.fill_weights))
    patch.setattr(packing.Preparation, "__init__", _preparing(packing.Preparation.__init__))
    patch.setattr(CompiledLayer, "_link", _linking(CompiledLayer._link, _ends_of_layer))
    patch.setattr(GradientPart, "linked", _linking(GradientPart.linked, _ends_of_gradient))
    for module in (compiled_conv, tuner, gradients):
        patch.setattr(module, "candidate_program", _of_candidate(module.candidate_program))
    patch.setattr(compiled_graph, "place", _of_network(compiled_graph.place))
    for module in (layer_plan, gradient_part, tuner, gradients):
        patch.setattr(module, "told_program", _telling(module.told_program))


def _program(*arguments: Any, pauses: Sequence[int] = (), **more: Any) -> Program:
    assert not pauses
    return GuardedProgram(*arguments, **more, sizes=_pending.sizes)


def _stream_program(stages: Any, library: Any, slots: int, *more: Any) -> Program:
    *given, pauses = more
    assert not pauses
    if given[2]:  # operands of loops move
        return StreamProgram(stages, library, slots, *given)
    return GuardedStreamProgram(stages, library, slots, *given, sizes=_pending.sizes)


def _block_of(plain: Callable[[Block, int], None]) -> Callable[[Block, int], None]:
    def make(self: Block, size: int) -> None:
        try:
            region = Region(size, ALIGNMENT, fill=0)
        except (OSError, ValueError, OverflowError):
            plain(self, size)  # says what to do
            raise
        self.bytes, self.address, self._region = size, region.address, region

    return make


def _view(self: Block, offset: int, size: int) -> np.ndarray:
    assert offset + size <= self.bytes
    return self._region.data[offset : offset + size]


def _placing(plain: Callable[..., Storage]) -> Callable[..., Storage]:
    def place(
        lowered: LoweredGraph,
        threads: int = 0,
        pinned: PlacedBuffers | None = None,
        read: Sequence[Reading] = (),
    ) -> Storage:
        storage = plain(lowered, threads, pinned, read)
        slots = [lowered.bytes[name] for name in (*lowered.inputs, *lowered.outputs)]
        _pending.network = Sizes(slots, _weights, values=ArenaValues(lowered, storage, read))
        return storage

    return place


def _keeping(plain: Callable[..., None]) -> Callable[..., None]:
    def keep(program: PortableProgram, block: Block, *more: Any) -> None:
        plain(program, block, *more)
        _weights.update({block.address + offset: size for _, size, offset in program.kept})

    return keep


def _filling(plain: Callable[..., None]) -> Callable[..., None]:
    def fill(block: Block, pool: ConstantPool, places: Mapping[str, int], *more: Any) -> None:
        _weights.update({block.address + place: pool.bytes[n] for n, place in places.items()})
        plain(block, pool, places, *more)
        _pending.sizes = _pending.network

    return fill


def _ends(array: np.ndarray) -> tuple[int, int]:
    """Where the memory of a view begins and ends."""
    moves = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    first = array.ctypes.data
    return first + sum(min(0, m) for m in moves), first + sum(
        max(0, m) for m in moves
    ) + array.itemsize


def _preparing(plain: Callable[..., None]) -> Callable[..., None]:
    def make(
        self: packing.Preparation,
        calls: Sequence[tuple[PackCall, int]],
        library: Any,
        threads: int,
        given: Sequence[np.ndarray] = (),
        moving: bool = False,
    ) -> None:
        known, begins, waiting = dict[int, int](), dict[int, int](), []
        for call, address in calls:
            source, tables = call.source(), call.tables()
            start = source.ctypes.data + call.first
            lowest, end = _ends(source)
            begins[start] = begin = min(start, lowest)
            known[begin] = end - begin
            known.update({table.ctypes.data: table.nbytes for table in tables})
            kept = replace(call, source=lambda a=source: a, tables=lambda held=tables: held)
            waiting.append((kept, address))
        made = {address: call.bytes for call, address in calls}
        packed = [max(address + call.bytes for call, address in calls)] if moving else []
        sizes = [*(array.nbytes for array in given), *packed]
        _pending.sizes = Sizes(sizes, known, {} if moving else made, begins=begins)
        plain(self, waiting, library, threads, given, moving)

    return make


def _linking(plain: Callable[..., Any], ends: Callable[[Any], list[int]]) -> Callable[..., Any]:
    def link(self: Any, *given: Any) -> Any:
        _pending.ends = ends(self)
        try:
            return plain(self, *given)
        finally:
            _pending.ends = ()

    return link


def _ends_of_layer(plan: CompiledLayer) -> list[int]:
    """Bytes of each array that a run is given, results last."""
    spec = plan.spec
    x, y = prod(spec.input_shape) * plan.x.bytes, prod(spec.output_shape) * plan.y.bytes
    return [x, *([y] if getattr(spec, "residual", False) else []), y]


def _ends_of_gradient(part: GradientPart) -> list[int]:
    lowered = part.made.lowered
    return [lowered.bytes[name] for name in (*lowered.inputs, *lowered.outputs)]


def _of_candidate(plain: Callable[..., Any]) -> Callable[..., Any]:
    def make(candidate: Candidate, *more: Any) -> Any:
        program, library = plain(candidate, *more)
        places, _ = aligned_offsets(candidate.constant_bytes)
        constants = {places[role]: size for role, size in candidate.constant_bytes.items()}
        _made[id(program)] = program, constants, Temporaries(candidate.temporaries)
        return program, library

    return make


def _of_network(plain: Callable[..., PortableProgram]) -> Callable[..., PortableProgram]:
    def make(lowered: LoweredGraph, layout: Layout, *more: Any) -> PortableProgram:
        program = plain(lowered, layout, *more)
        constants = dict[int, int]()
        for name, at in layout.constants.items():
            constants[at] = max(constants.get(at, 0), lowered.constants.bytes[name])
        _made[id(program)] = program, constants, _pending.network.values
        return program

    return make


def _telling(plain: Callable[..., Program]) -> Callable[..., Program]:
    def tell(program: PortableProgram, library: Any, arena: ArenaPart, paced: bool = True) -> Any:
        if id(program) not in _made:
            return plain(program, library, arena, paced)
        _, constants, values = _made[id(program)]
        first, ends = program.inputs + program.outputs, getattr(_pending, "ends", ())
        numbers = {at: Slot(number) for number, at in enumerate(constants, first)}
        stages = linked_stages(program, numbers.__getitem__)
        sizes = Sizes([*ends, *constants.values()] if ends else (), values=values)
        slots = first + len(constants)
        given = stages, library, slots, 0, 0, program.threads, paced, arena
        return ToldProgram(*given, sizes=sizes, places=list(constants))

    return tell
