"""Networks on Dask: over arrays larger than memory, and over many images, on many processes.

    import dask.array as da
    import leanconv.dask

    y = leanconv.dask.map_network(net, da.from_zarr("scene.zarr"))  # a Dask array, lazily
    scores = leanconv.dask.map_bag(net, images)  # of a bag of arrays

Dask schedules, on threads, processes or a cluster, and runs again what was lost with a worker.
leanconv says which part of the image each window reads, and which of its results are right. It
needs the extra `leanconv[dask]`.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import isnan, prod
from operator import getitem
from typing import Any

from leanconv.errors import MissingExtraError

if find_spec("dask") is None:
    raise MissingExtraError(
        "leanconv.dask needs Dask, which is not installed: pip install 'leanconv[dask]'"
    )

import dask
import dask.array as da
import dask.bag as db
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from leanconv.api.image_places import SHARED, file_state, memmaps
from leanconv.api.inputs import InputSpec
from leanconv.api.network import Network
from leanconv.api.options import checked_threads
from leanconv.api.tile_arrays import checked_image
from leanconv.api.tiled import tiled
from leanconv.dask.workers import (
    Blocks,
    BlocksPart,
    StoredPart,
    Window,
    WorkerNetwork,
    worker_network,
    worker_tiles,
)
from leanconv.errors import InputError, SpecError, UnsupportedError
from leanconv.graph.network_inputs import Names
from leanconv.planner.image_tiles.windows import Tile, Windows
from leanconv.records import dataclass, replace

__all__ = ["map_bag", "map_network"]


def map_network(
    net: Network,
    *arrays: Any,
    memory_limit: int | str | None = None,
    tile: int | Sequence[int] | None = None,
    threads: int | None = None,
    **named: Any,
) -> Any:
    """Make the result of a network over an image of any size, as a Dask array that is not computed.

    Each window of `leanconv.tiled` is a task. It has the same bits as there, wherever it runs. Each
    process holds the network's weights once and runs one window at a time, with threads of its own.

    Args:
        net: a local network for the CPU, from `leanconv.load`; see `leanconv.tiled`.
        arrays, named: the inputs: Dask arrays, of whose blocks windows are put together. Of others
            (Zarr, `np.memmap`, …) workers read windows themselves: they must be able to open them.
        memory_limit: bytes, or text such as `"512 MiB"`, that weights, buffers and windows may
            take together in each process that runs one window at a time.
        tile: the least extents of a window, as for `leanconv.tiled`.
        threads: of each process. By default as many as the Dask worker has threads, and those of
            `net` where there is no such worker.

    Returns:
        A Dask array, whose blocks are what each window gives; `rechunk` it before it is stored in
        an array that has chunks of its own. Of a network of several outputs all by name.

    Raises:
        InputError: an array does not fit.
        SpecError: an argument makes no sense.
        UnsupportedError: the network cannot be run in tiles; the message names the node.
        BudgetError: no windows fit the limit.
    """
    cut = tiled(net, memory_limit=memory_limit, tile=tile)
    names = Names(tuple(each.name for each in cut.inputs), tuple(each.name for each in net.outputs))
    given = replace(names, outputs=names.outputs[:1]).called(arrays, named)
    images = {spec: _checked(each, spec) for each, spec in zip(given, cut.inputs, strict=True)}
    plan = cut.bind({spec.name: image.shape for spec, image in images.items()})
    types = plan.windows.whole.types
    if not any(types[name].elements for name in names.outputs):
        empty = {n: np.empty(types[n].shape, types[n].dtype.numpy) for n in names.outputs}
        found = {n: da.from_array(array, chunks=-1) for n, array in empty.items()}
    else:
        network = worker_tiles(net, plan.decisions, checked_threads(threads))
        found = _Graph(plan.windows, images, network).arrays()
    return next(iter(found.values())) if len(found) == 1 else found


@dataclass(frozen=True)
class MappedFile:
    """An array of a mapped file, which is sent by its name and opened where it is read.

    Attributes:
        path: of the file.
        dtype, shape, strides: of the array, which may be a slice of what is mapped.
        begin: where its first element lies in the file.
        state: a text that changes when the file's contents do.
    """

    path: str
    dtype: np.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    begin: int
    state: str

    @classmethod
    def of(cls, array: Any) -> MappedFile | None:
        """The mapped file of an array; None for one in memory, or of a private mapping."""
        mapped = next((each for each in memmaps(array) if isinstance(each.base, mmap.mmap)), None)
        if mapped is None or mapped.mode not in SHARED or not mapped.filename or not array.size:
            return None
        begin = mapped.offset + array.ctypes.data - mapped.ctypes.data
        path = str(mapped.filename)
        return cls(path, array.dtype, array.shape, array.strides, begin, file_state(path))

    def __getitem__(self, index: Any) -> Any:
        """A part, whose pages are read now."""
        steps = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        first = self.begin + sum(min(0, step) for step in steps)
        last = self.begin + sum(max(0, step) for step in steps) + self.dtype.itemsize
        octets = np.memmap(self.path, np.uint8, "r", first, (last - first,))
        array: np.ndarray = np.ndarray(
            self.shape, self.dtype, octets, self.begin - first, self.strides
        )
        return np.array(array[index])


def _checked(image: Any, spec: InputSpec) -> Any:
    """An input as tasks can read it: a Dask array, or what workers can open.

    Raises:
        InputError: an array does not fit, or has no known shape.
    """
    if isinstance(image, da.Array) and any(map(isnan, image.shape)):
        raise InputError(
            f"input {spec.name!r} has blocks of unknown extents; expected known ones: call its "
            "compute_chunk_sizes() first"
        )
    checked_image(image, spec)
    if not isinstance(image, np.ndarray):
        return image
    return MappedFile.of(image) or da.from_array(np.asarray(image))


class _Graph:
    """The tasks of all windows.

    Args:
        windows: of the image.
        images: by input.
        network: that computes them.
    """

    def __init__(
        self, windows: Windows, images: Mapping[InputSpec, Any], network: WorkerNetwork
    ) -> None:
        self._windows, self._images, self._types = windows, images, windows.whole.types
        token = tokenize(network.key, windows.begins, *images.values())
        self._common, self._network = f"leanconv-windows-{token}", f"leanconv-network-{token}"
        self._names = {
            name: f"leanconv-{n}-{token}" for n, name in enumerate(windows.whole.outputs)
        }
        self._tasks: dict[Any, Any] = {self._network: network}
        self._blocks: dict[str, Blocks] = {}
        self._stored: dict[str, str] = {}
        for number, (spec, image) in enumerate(images.items()):
            if isinstance(image, da.Array):
                self._blocks[spec.name] = Blocks(image.name, image.chunks, spec.dtype.numpy)
            else:
                self._stored[spec.name] = f"leanconv-input-{number}-{token}"
                self._tasks[self._stored[spec.name]] = image

    def arrays(self) -> dict[str, da.Array]:
        """All outputs by name: a layer of the windows, and one of each output's blocks."""
        blocks: dict[str, dict[Any, Any]] = {name: {} for name in self._names}
        extents = {name: [dict[int, int]() for _ in self._types[name].shape] for name in blocks}
        for tile in self._windows.tiles():
            call = self._call(tile)
            for number, (name, made) in enumerate(self._names.items()):
                place = self._place(name, tile)
                key, window = (made, *place), (self._common, tile.number)
                if len(blocks) == 1:
                    blocks[name][key] = (Window.run_of_one, *call)
                else:
                    self._tasks[window] = (Window.run, *call)
                    blocks[name][key] = (getitem, window, number)
                for axis, part in enumerate(tile.writes[name]):
                    extents[name][axis][place[axis]] = part.stop - part.start
        return {name: self._array(name, blocks[name], extents[name]) for name in blocks}

    def _array(
        self, name: str, blocks: Mapping[Any, Any], extents: Sequence[Mapping[int, int]]
    ) -> da.Array:
        """An output, from its blocks and, axis by axis, their extents."""
        chunks = tuple(tuple(each[n] for n in sorted(each)) for each in extents)
        if len(blocks) < prod(map(len, chunks)):
            raise UnsupportedError(
                f"output {name!r} has two axes that are cut together, which blocks of a Dask "
                "array cannot have; run the network with leanconv.tiled"
            )
        made, dtype = self._names[name], np.dtype(self._types[name].dtype.numpy)
        inputs = [image for image in self._images.values() if isinstance(image, da.Array)]
        graph = HighLevelGraph.from_collections(self._common, self._tasks, inputs)
        needed = {self._common, *(image.name for image in inputs)}
        layers = {**graph.layers, made: MaterializedLayer(blocks)}
        whole = HighLevelGraph(layers, {**graph.dependencies, made: needed})
        return da.Array(whole, made, chunks, dtype)

    def _place(self, name: str, tile: Tile) -> tuple[int, ...]:
        """The number, along each axis of an output, of the block that a window gives."""
        windows = self._windows
        counts = [len(each) for each in windows.begins]
        chosen = np.unravel_index(tile.number, counts) if counts else ()
        places = windows.cutting.places[name]
        return tuple(
            int(chosen[places[axis].group]) if axis in places else 0
            for axis in range(len(windows.whole.types[name].shape))
        )

    def _call(self, tile: Tile) -> tuple[Any, ...]:
        """The arguments of one window's task: what it is, and the keys of what it takes."""
        parts: list[tuple[str, BlocksPart | StoredPart]] = []
        given: list[Any] = []
        for spec in self._images:
            index = tile.reads[spec.name]
            if spec.name in self._blocks:
                part, keys = self._blocks[spec.name].part(index)
                parts.append((spec.name, part))
                given.append(keys)
            else:
                parts.append((spec.name, StoredPart(index, spec)))
                given.append(self._stored[spec.name])
        return Window(tuple(parts), tuple(tile.gives.items())), self._network, given


def map_bag(net: Network, bag: Any) -> Any:
    """Make the results of a network for every element of a Dask bag, which is not computed.

    Each process holds the network's weights once, and runs one element at a time, with as many
    threads as `net` has. Each element gets the bits that `net` gives in this process, on CPUs of
    the same instruction set.

    Args:
        net: a network for the CPU, from `leanconv.load`. What takes part in its plans (threads,
            limits) is sent with it: load it with `threads=1` for workers of one thread each.
        bag: of arrays such as the network takes, or of dictionaries of all inputs by name.

    Returns:
        A bag of outputs, each an array; of a network of several outputs a dictionary by name.

    Raises:
        SpecError: an argument makes no sense.
    """
    if not isinstance(bag, db.Bag):
        raise SpecError(
            f"bag is {type(bag).__name__}; expected a Dask bag, such as "
            "dask.bag.from_sequence(files).map(read_image)"
        )
    network = dask.delayed(worker_network(net), pure=True, traverse=False)
    return bag.map(_outputs, network=network)


def _outputs(element: Any, network: WorkerNetwork) -> Any:
    found = network.run_on(element)
    return next(iter(found.values())) if len(found) == 1 else found
