"""Networks from snapshots: what an earlier process has planned, run without planning it again.

A snapshot holds a network for some input shapes: its portable program (`runtime/portable`), its
packed constants, the types of what it reads and gives, and the names of the forms whose code is in
the cache of objects. Its key names all that a plan follows from: the file's bytes, the options, the
processor, the number of threads, NumPy's version and leanconv's sources. With it nothing is bound,
chosen or lowered, and what does that is not imported. What a snapshot lacks (a plan to explain,
other shapes, a copy) is planned from the file's bytes, which stay mapped, when it is asked for.
"""

from __future__ import annotations

import copy
import hashlib
import mmap
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from leanconv.api.fast_call import FastCall, Given
from leanconv.api.inputs import InputSpec, Known, Ports, Shape, validated_input
from leanconv.api.network import Network
from leanconv.api.options import NetworkOptions
from leanconv.canonical import canonical_text
from leanconv.codegen.compiler import fetched
from leanconv.codegen.host import check_runs_here
from leanconv.codegen.keys import network_key
from leanconv.codegen.known_forms import ours
from leanconv.errors import InputError, LeanConvError, memory_reported
from leanconv.files import open_regular
from leanconv.graph.ir import TensorType
from leanconv.graph.network_inputs import Deciding
from leanconv.progress import checked_progress, spending, working
from leanconv.records import cached_property, replace
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.memory import Block, Held, Memory, Outputs, SharedArena
from leanconv.runtime.pool import default_threads
from leanconv.runtime.portable import PortableProgram, described, linked_stages, program_of
from leanconv.runtime.program import Program
from leanconv.runtime.snapshot_file import KeptConstant, OpenSnapshot, SnapshotFiles
from leanconv.settings import current_settings
from leanconv.spec.format import aligned
from leanconv.types import DType, named_dtype

if TYPE_CHECKING:
    from leanconv.api.backend import Backend, Compiled, PlanningBackend
    from leanconv.api.planned_call import PlannedCall
    from leanconv.codegen.linking import Library
    from leanconv.graph.onnx_import import Model
    from leanconv.target import Target

_MOST_SHAPES = 8  # of a network; each has the constants whole
_MOST_FILE = 256 * 2**20  # bytes: longer files take longer to hash than it takes to plan
_MOST_READ = 1 << 20  # bytes of smaller files, which are not mapped
# Options of `load` that a network with snapshots may have; the others have their defaults.
_TAKEN = (
    "threads",
    "dtype",
    "memory_limit",
    "max_error",
    "reproducible",
    "algorithms",
    "precision",
)
_BESIDE = ("progress", "device", "shapes", *_TAKEN)
Shapes: TypeAlias = "Shape | dict[str, Shape]"
# Makes the backend that plans a network, beside the memory of its snapshots.
Planning: TypeAlias = "Callable[[Snapshots, SnapshotMemory], PlanningBackend]"


class Snapshots:
    """The snapshots of one network with its options, for this processor.

    Args:
        source: the path of the network's file, or its bytes.
        data: the file's bytes.
        options: of `load`, checked.
        shapes: that the network is for; None for those of the file.
        progress: the user's function, called while the network is planned after all.
    """

    def __init__(
        self,
        source: Path | bytes,
        data: memoryview,
        options: NetworkOptions,
        shapes: Shapes | None,
        progress: Any,
    ) -> None:
        self.source, self.data, self.options, self.shapes = source, data, options, shapes
        self._progress = progress
        settings, self.target = current_settings(), planning_target()
        check_runs_here(self.target)
        limit = min(settings.snapshot_cache_bytes, settings.cache_bytes and 1 << 62)
        self._files = SnapshotFiles(settings.cache_dir / "snapshots", limit)
        self._digest = _digest(data)
        self._key = self._key_for(shapes)

    def _key_for(self, shapes: Shapes | None) -> str:
        threads = self.options.threads or default_threads()
        facts = self._digest, len(self.data), replace(self.options, threads=threads), shapes
        versions = np.__version__, sys.version_info[:3]
        return network_key(f"snapshot\n{canonical_text((facts, versions))}", self.target)

    def stating(self, shapes: Any) -> Snapshots | None:
        """The snapshots of the network for stated shapes; None where these are not all numbers."""
        stated = _numbers(shapes)
        if stated is None or self.shapes is not None:
            return None
        found = copy.copy(self)
        found.shapes, found._key = stated, self._key_for(stated)
        return found

    @staticmethod
    def of(source: Path | bytes, given: Mapping[str, Any]) -> Snapshots | None:
        """The snapshots of what `load` is given; None where it is not to use any.

        Args:
            source: the path of a file, or its bytes.
            given: all options of `load`.
        """
        settings = current_settings()
        if not (settings.snapshot_cache_bytes and settings.cache_bytes):
            return None
        others = (value for name, value in given.items() if name not in _BESIDE)
        shapes = given["shapes"]
        if given["device"] != "cpu" or any(
            each is not None and each is not False for each in others
        ):
            return None
        try:
            with spending("reading"):
                options = NetworkOptions.checked(**{name: given[name] for name in _TAKEN})
                checked_progress(given["progress"])
                stated = None if shapes is None else _numbers(shapes)
                if shapes is not None and stated is None:
                    return None
                data = memoryview(source) if isinstance(source, bytes) else _mapped(source)
                if len(data) > _MOST_FILE:
                    return None
                return Snapshots(source, data, options, stated, given["progress"])
        except (LeanConvError, OSError, ValueError):
            return None  # planning says why

    @property
    def name(self) -> str:
        """The network, in messages."""
        if isinstance(self.source, bytes):
            return f"a model of {len(self.source)} bytes"
        return self.source.name

    def same_data(self) -> memoryview:
        """The file's bytes, as they were when the snapshots were looked for.

        Raises:
            InputError: they have changed since.
        """
        if _digest(self.data) != self._digest:
            raise InputError(
                f"the model {self.name!r} has been written to since it was loaded; expected a file "
                "that stays as it is while its network is in use: load it again"
            )
        return self.data

    # -- reading -----------------------------------------------------------------------------
    @memory_reported("loading a network")
    def network(self, planning: Planning) -> Network | None:
        """The network, if it has been kept with these options.

        Args:
            planning: makes the backend that plans it from the file.
        """
        backend = self.backend(planning)
        if backend is None:
            return None
        with working(self.name, self._progress):
            return Network(backend, self.name)

    def backend(self, planning: Planning) -> SnapshotBackend | None:
        """A backend of what has been kept; None if there is nothing."""
        with spending("reading"):
            found = self._files.read(self._key, _ports_in)
        return None if found is None else SnapshotBackend(self, *found, planning)

    def compiled(self, given: Given, memory: SnapshotMemory) -> SnapshotNetwork | None:
        """The network for input shapes, if a snapshot of it is there and whole."""
        key = self._key_of(given.shapes)
        return self._files.read(key, lambda file: _network(file, given, memory, self.target))

    def _key_of(self, shapes: tuple[Shape, ...]) -> str:
        digest = hashlib.sha256(canonical_text(shapes).encode()).hexdigest()
        return f"{self._key}-{digest[:24]}"

    # -- writing -----------------------------------------------------------------------------
    @spending("keeping a snapshot")
    def keep(self, model: Model, dtype: DType, call: PlannedCall) -> None:
        """Keep a network that was planned, unless it is one that a snapshot cannot hold.

        Args:
            model: as read from the file.
            dtype: in which it computes.
            call: of the network for some input shapes.
        """
        network = call.network
        program = network.program
        if model.has_data_beside or program.repeats or program.streamed or call.given.known:
            return
        if not all(ours(kernel) for step in call.plan.steps for kernel in step.kernels):
            return  # what others' sources say is in no key
        if _digest(self.data) != self._digest:
            return  # the file was written to meanwhile
        kinds = {"inputs": network.inputs, "results": network.results}
        constants = {
            at: network.constant(at) for at, (_, size) in network.constants.items() if size
        }
        empty = [at for at, (_, size) in network.constants.items() if not size]
        description = {
            **{name: [*map(_kind, each.items())] for name, each in kinds.items()},
            "program": described(program),
            "empty": empty,
            "packings": network.packings,
        }
        if self._files.keep(self._key_of(call.shapes), description, constants, _MOST_SHAPES):
            self.keep_ports(model, dtype)

    def keep_ports(self, model: Model, dtype: DType) -> None:
        """Keep what a network takes and gives, by which `load` knows that it can be planned.

        Args:
            model, dtype: as of `keep`.
        """
        ports = Ports.of(model, dtype, dtype)
        specs = {"inputs": ports.inputs, "outputs": ports.outputs}
        facts = {
            **{name: [*map(_spec, each)] for name, each in specs.items()},
            "dtype": str(dtype),
            "metadata": dict(ports.metadata),
        }
        self._files.keep(self._key, facts, {})


def _digest(data: memoryview) -> str:
    """The SHA-256 of a file's bytes; pages of a mapped one are let go."""
    digest = hashlib.sha256(data).hexdigest()
    if isinstance(data.obj, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        data.obj.madvise(mmap.MADV_DONTNEED)
    return digest


def _numbers(shapes: Any) -> Shapes | None:
    """Stated shapes whose extents all are numbers, in one form; None of others."""
    if isinstance(shapes, Mapping):
        found = {str(name): _numbers(shape) for name, shape in shapes.items()}
        fixed = {name: shape for name, shape in found.items() if isinstance(shape, tuple)}
        return fixed if len(fixed) == len(found) else None
    if not isinstance(shapes, tuple | list) or not all(type(each) is int for each in shapes):
        return None
    return tuple(shapes)


def _mapped(path: Path) -> memoryview:
    """The bytes of a file.

    Raises:
        LeanConvError, OSError, ValueError: it cannot be read, or has more than are hashed.
    """
    with open_regular(path.resolve(strict=True), _MOST_FILE, follow=False) as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size < _MOST_READ:
            return memoryview(file.read())
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _spec(spec: InputSpec) -> tuple[object, ...]:
    return spec.name, spec.shape, str(spec.dtype)


def _kind(item: tuple[str, TensorType]) -> tuple[object, ...]:
    return item[0], item[1].shape, str(item[1].dtype)


def _ports_in(file: OpenSnapshot) -> tuple[Ports, DType]:
    """The ports that a file describes, and in which type the network computes."""
    found = file.description
    inputs, outputs = (_specs(found[name]) for name in ("inputs", "outputs"))
    metadata = {str(name): str(value) for name, value in found["metadata"].items()}
    return Ports(inputs, outputs, metadata), named_dtype(found["dtype"])


def _specs(described: Iterable[Sequence[Any]]) -> tuple[InputSpec, ...]:
    return tuple(
        InputSpec(str(name), None if shape is None else _extents(shape), named_dtype(kind))
        for name, shape, kind in described
    )


def _extents(shape: Sequence[Any]) -> tuple[int | str | None, ...]:
    if not all(each is None or type(each) in (int, str) for each in shape):
        raise TypeError(f"{shape} is no shape")
    return tuple(shape)


def _kinds(described: Iterable[Sequence[Any]]) -> dict[str, TensorType]:
    found = {spec.name: (spec.static_shape, spec.dtype) for spec in _specs(described)}
    return {n: TensorType(shape, kind) for n, (shape, kind) in found.items() if shape is not None}


class SnapshotMemory:
    """What the snapshots of one network share in this process: arena, outputs, constants.

    Plans that are made beside them share it, too.
    """

    def __init__(self) -> None:
        self.arena, self.outputs = SharedArena(), Outputs()
        self._constants: dict[str, tuple[weakref.ref[Block], int]] = {}  # by their digests
        self._packings: dict[str, Sequence[KeptConstant]] = {}  # by theirs

    def found(self, constant: KeptConstant) -> tuple[Block, int] | None:
        """The block in which a constant is in memory already, and its address."""
        block, address = self._constants.get(constant.digest, (_nothing, 0))
        held = block()
        return None if held is None else (held, address)

    def filled(self, file: OpenSnapshot, constants: Sequence[KeptConstant]) -> Block:
        """Read constants into a new block, side by side, for other snapshots to find.

        Raises:
            DamagedError: one is not what was written.
            OutOfMemoryError: the system does not give the memory.
        """
        block, end, places = Block(sum(aligned(each.bytes) for each in constants)), 0, []
        for each in constants:
            file.read_into(each, block.view(end, each.bytes).data)
            places.append((each.digest, (weakref.ref(block), block.address + end)))
            end += aligned(each.bytes)
        self._constants.update(places)
        return block

    def know(self, packings: Mapping[str, Sequence[KeptConstant]]) -> None:
        """Let plans find constants by the digest of what they were packed from."""
        self._packings.update(packings)

    def packed(self, digest: str, sizes: Sequence[int]) -> tuple[Block, Sequence[int]] | None:
        """The block that has all constants of a packing, and their addresses; None if none has.

        Args:
            digest: of what they are packed from.
            sizes: their bytes.
        """
        constants = self._packings.get(digest, ())
        places = [place for place in map(self.found, constants) if place is not None]
        blocks = {block for block, _ in places}
        fit = len(places) == len(constants) and [each.bytes for each in constants] == [*sizes]
        if not fit or len(blocks) != 1:
            return None
        return blocks.pop(), [address for _, address in places]


def _nothing() -> None:
    return None


class SnapshotNetwork:
    """A network as a snapshot has it, in memory.

    Args:
        program: checked.
        library: has the code of its forms.
        addresses: of its constants, by where the program has them.
        kinds: types of what it reads and gives.
        own: the block of constants that nothing else has read before.
        others: blocks of its other constants, and how many bytes these have.
        shared: arena and outputs.
    """

    def __init__(
        self,
        program: PortableProgram,
        library: Library,
        addresses: Mapping[int, int],
        kinds: tuple[Mapping[str, TensorType], Mapping[str, TensorType]],
        own: Block,
        others: tuple[Sequence[Block], int],
        shared: SnapshotMemory,
    ) -> None:
        self._inputs, self._results = kinds
        self.outputs, self.arena = shared.outputs, shared.arena.part(program.arena_bytes)
        self.memory, self.code_bytes = Memory(), library.code_bytes
        self.memory.keep("weights", own)
        self._held, self.shared_bytes = others
        self.memory_bytes = program.arena_bytes + program.constant_bytes
        self.blocks: Mapping[int, int] = {each.number: each.bytes for each in (own, *self._held)}
        slots = program.inputs + program.outputs
        stages = linked_stages(program, addresses.__getitem__)
        self._program = Program(stages, library, slots, 0, 0, program.threads, arena=self.arena)

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it reads, by name."""
        return self._inputs

    @property
    def results(self) -> Mapping[str, TensorType]:
        """Types of the arrays that it gives, by name."""
        return self._results

    def run(self, addresses: Sequence[int]) -> None:
        """Run on arrays at these addresses: inputs, then outputs."""
        self._program.run(addresses)


class SnapshotCall(FastCall[SnapshotNetwork]):
    """A network from a snapshot, and fast paths to call it.

    Args:
        given, network: as for `FastCall`.
        planning: makes a backend that plans it.
    """

    def __init__(
        self, given: Given, network: SnapshotNetwork, planning: Callable[[], PlanningBackend]
    ) -> None:
        super().__init__(given, network)
        self._planning = planning

    @property
    def planned(self) -> None:
        """None: a snapshot has no plan."""
        return None

    @property
    def memory_bytes(self) -> int:
        """Bytes that its plan said that runs need besides the caller's arrays."""
        return self.network.memory_bytes

    def report(self, front: bool) -> dict[str, Any]:
        """Say of every layer which candidates there were; for that it is planned again."""
        return self._planning().report(self.shapes, front)


def _network(
    file: OpenSnapshot, given: Given, shared: SnapshotMemory, target: Target
) -> SnapshotNetwork | None:
    """The network in a file; None where its code is not in the cache any more.

    Raises:
        One of `snapshot_file.WRONG`: the file is damaged.
    """
    found = file.description
    inputs, results = (_kinds(found[name]) for name in ("inputs", "results"))
    shapes = tuple(kind.shape for kind in inputs.values())
    if (tuple(inputs), shapes) != (given.names, given.shapes):
        raise ValueError("it is for other inputs")
    kept = {each.offset: each for each in file.constants}
    packings = {name: [kept[n] for n in offsets] for name, offsets in found["packings"].items()}
    offsets = {*found["empty"], *kept}
    sizes = [kind.bytes for kind in (*inputs.values(), *results.values())]
    program = program_of(found["program"], offsets, sizes)
    library = fetched([*found["program"]["forms"]], target)
    if library is None:
        return None
    with spending("packing weights"):
        known = {each.offset: place for each in file.constants if (place := shared.found(each))}
        new = [each for each in file.constants if each.offset not in known]
        own, end = shared.filled(file, new), 0
    addresses = dict.fromkeys(found["empty"], own.address)
    addresses |= {offset: address for offset, (_, address) in known.items()}
    for each in new:
        addresses[each.offset], end = own.address + end, end + aligned(each.bytes)
    shared.know(packings)
    blocks = [*dict.fromkeys(block for block, _ in known.values())]
    others = blocks, sum(aligned(each.bytes) for each in file.constants if each.offset in known)
    return SnapshotNetwork(program, library, addresses, (inputs, results), own, others, shared)


class SnapshotBackend:
    """A backend whose networks come from snapshots; `whole` plans what these lack.

    Args:
        snapshots: of the network.
        ports, dtype: of it.
        planning: makes `whole`.
    """

    most_cached = 2**31  # bounded in bytes alone
    deciding = Deciding()  # where values of inputs decide, there are no snapshots

    def __init__(
        self,
        snapshots: Snapshots,
        ports: Ports,
        dtype: DType,
        planning: Planning,
    ) -> None:
        self.ports, self.dtype, self.input_dtype = ports, dtype, dtype
        self.cache_bytes = current_settings().plan_cache_bytes
        self._snapshots, self._planning, self._memory = snapshots, planning, SnapshotMemory()
        self._limit = snapshots.options.memory_limit

    @cached_property
    def whole(self) -> PlanningBackend:
        """The backend that plans the network from its file.

        Raises:
            InputError: the file has changed since.
        """
        return self._made()

    def _made(self) -> PlanningBackend:
        return self._planning(self._snapshots, self._memory)

    @property
    def model(self) -> Model:
        """The network as read from its file, now."""
        return self.whole.model

    def private_bytes(self, held: Held) -> int:
        """All bytes of `held`."""
        return held.bytes

    @property
    def output_bytes(self) -> int:
        """Free memory for large outputs, of all snapshots."""
        return self._memory.outputs.free_bytes

    def validated(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """The inputs as kernels can read them."""
        return [validated_input(a, spec) for a, spec in zip(arrays, self.ports.inputs, strict=True)]

    def prepare(self) -> tuple[()]:
        """Return nothing to compile: it was supported when the snapshot was made."""
        return ()

    def compile(self, shapes: tuple[Shape, ...], known: Known) -> Compiled | None:
        """The network for input shapes; None where no snapshot has them, within this limit."""
        if self._limit != self._snapshots.options.memory_limit:
            return None
        given = Given(tuple(spec.name for spec in self.ports.inputs), shapes, {})
        network = self._snapshots.compiled(given, self._memory)
        return None if network is None else SnapshotCall(given, network, self._made)

    def limit_to(self, memory_limit: int) -> None:
        """Find no snapshots of plans that had another limit."""
        self._limit = memory_limit

    def kept(self, shapes: Any) -> SnapshotBackend | None:
        """A backend for stated shapes whose plan a snapshot has; None where there is none."""
        snapshots = self._snapshots.stating(shapes)
        return None if snapshots is None else snapshots.backend(self._planning)

    def copied(self, compiled: Compiled | None) -> Backend:
        """A backend for a copy, which plans."""
        return self.whole.copied(compiled)
