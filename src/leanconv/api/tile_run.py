"""A run in tiles: one window is read and another one written while a third one is computed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from time import monotonic
from typing import Any
from zlib import crc32

import numpy as np

from leanconv.api.file_windows import FileWindows, through_calls
from leanconv.api.inputs import InputSpec
from leanconv.api.network import Network
from leanconv.api.planned_call import PlannedCall
from leanconv.api.tile_arrays import Image, flush, read, release, write
from leanconv.api.tile_journal import Journal, Sums
from leanconv.api.tile_plan import TilePlan
from leanconv.planner.image_tiles.windows import Tile
from leanconv.progress import steps

log = logging.getLogger(__name__)

# From one entry of the journal to the next: files are made durable before. Where that takes long,
# it is done so much more rarely.
_SECONDS, _RARELY = 1, 4


def run_tiles(
    network: Network,
    plan: TilePlan,
    specs: Sequence[InputSpec],
    images: Sequence[Image],
    outs: Mapping[str, Any],
    finished: Journal,
) -> None:
    """Run the tiles that are not finished, or whose inputs or results have changed since.

    Args:
        network: computes a window.
        plan: the windows.
        specs: the network's inputs.
        images: arrays to read, one for each input.
        outs: arrays to write, by the outputs' names.
        finished: the journal that is read and written.
    """
    with ExitStack() as stack:
        files = [through_calls(image, stack) for image in images]
        results = {name: through_calls(out, stack, writing=True) for name, out in outs.items()}
        windows = _Windows(network, plan, specs, files, results, finished.is_kept)
        reader, writer = (stack.enter_context(ThreadPoolExecutor(1)) for _ in range(2))
        tiles = list(plan.windows.tiles())
        finished.keep(_held(windows, tiles, finished.done, reader))
        left = [tile for tile in tiles if tile.number not in finished.done]
        if not left:
            return
        notes = stack.enter_context(_Notes(finished, results.values()))
        behind: Future[None] | None = None

        def writing(tile: Tile, read: str, found: Sequence[np.ndarray]) -> None:
            notes.add(tile, Sums(read, windows.write(tile, found)))

        ahead = reader.submit(windows.read, left[0])
        for number, tile in enumerate(steps("computing tiles", left, len(left)), 1):
            arrays, sums = ahead.result()
            if number < len(left):
                ahead = reader.submit(windows.read, left[number])
            found = windows.compute(arrays)
            if behind is not None:
                behind.result()
            behind = writer.submit(writing, tile, sums, found)
        assert behind is not None
        behind.result()
        notes.end()


def _held(
    windows: _Windows, tiles: Sequence[Tile], noted: Mapping[int, Sums], reader: ThreadPoolExecutor
) -> dict[int, Sums]:
    """Tiles whose inputs and results are as a journal says, with their check sums.

    Nothing else shows whether they do: results may have been made anew or lost by a system that
    failed, images written over, and times of change say little of what is written by mappings.
    """
    listed = [tile for tile in tiles if tile.number in noted]
    found = {}
    for tile in steps("checking tiles", listed, len(listed)) if listed else ():
        given = reader.submit(windows.read, tile)
        written = windows.written(tile)
        _, sums = given.result()
        if noted[tile.number] == Sums(sums, written):
            found[tile.number] = noted[tile.number]
    return found


class _Windows:
    """The arrays of windows: two of each input and output, which take turns.

    While one is computed, the next one is read and the last one written.

    Args:
        network: computes a window.
        plan, specs, images, outs: as of `run_tiles`.
        summed: whether what is read and written is summed up.
    """

    def __init__(
        self,
        network: Network,
        plan: TilePlan,
        specs: Sequence[InputSpec],
        images: Sequence[Any],
        outs: Mapping[str, Any],
        summed: bool,
    ) -> None:
        self._summed = summed
        self._network, self._specs, self._images, self._outs = network, specs, images, outs
        network.bind(plan.tile_shapes)
        kinds = [(plan.tile_shapes[spec.name], np.dtype(spec.dtype.numpy)) for spec in specs]
        self._read = cycle([[np.empty(*kind) for kind in kinds] for _ in range(2)])
        compiled = network.compiled
        self._compiled: PlannedCall | None = None
        narrow = any(spec.dtype.held != spec.dtype for spec in (*specs, *network.outputs))
        if type(compiled) is PlannedCall and not narrow and not compiled.given.known:
            self._compiled = compiled
            self._results = cycle([compiled.new_outputs() for _ in range(2)])
        arrays = (*images, *outs.values())
        self._mapped = [each for each in arrays if not isinstance(each, FileWindows)]

    def read(self, tile: Tile) -> tuple[list[np.ndarray], str]:
        """The inputs of a window, and their check sum."""
        triples = zip(self._specs, self._images, next(self._read), strict=True)
        found = [read(image, tile.reads[spec.name], spec, into) for spec, image, into in triples]
        return found, self._sum(found)

    def compute(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The outputs of a window."""
        if self._compiled is None:
            names = (spec.name for spec in self._specs)
            found = self._network.run(dict(zip(names, arrays, strict=True)))
            return list(found.values())
        results = next(self._results)
        self._compiled.run_into(arrays, results)
        return results

    def write(self, tile: Tile, found: Sequence[np.ndarray]) -> str:
        """Write the right part of a window's outputs, and return its check sum."""
        parts = [array[tile.gives[name]] for name, array in zip(self._outs, found, strict=True)]
        for (name, out), part in zip(self._outs.items(), parts, strict=True):
            write(out, name, tile.writes[name], part)
        release(self._mapped)
        return self._sum(parts)

    def written(self, tile: Tile) -> str:
        """The check sum of the results where a window was written; "" if they are damaged."""
        try:
            found = [np.asarray(out[tile.writes[name]]) for name, out in self._outs.items()]
        except Exception as error:  # whatever stores raise of a chunk that was cut short
            log.debug("the results of tile %d cannot be read: %s", tile.number, error)
            return ""
        release(self._mapped)
        return self._sum(found)

    def _sum(self, arrays: Sequence[np.ndarray]) -> str:
        """The CRC-32 of arrays, as eight digits; "" where nobody asks for it."""
        if not self._summed:
            return ""
        found = 0
        for array in arrays:
            found = crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, found)
        return f"{found:08x}"


class _Notes:
    """Makes results durable, and notes their tiles then, in a thread of its own.

    Args:
        journal: where finished tiles are noted.
        outs: the results.
    """

    def __init__(self, journal: Journal, outs: Collection[Any]) -> None:
        self._journal, self._outs = journal, outs
        self._written: list[tuple[int, Sums]] = []
        self._thread = ThreadPoolExecutor(1)
        self._noting: Future[None] | None = None
        self._next = monotonic() + _SECONDS

    def __enter__(self) -> _Notes:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def add(self, tile: Tile, sums: Sums) -> None:
        """Note a tile that is written, sooner or later."""
        if not self._journal.is_kept:
            return
        self._written.append((tile.number, sums))
        if monotonic() >= self._next and (self._noting is None or self._noting.done()):
            self._start()

    def end(self) -> None:
        """Note the tiles that are left, and wait until they are noted."""
        if self._written or self._noting:
            self._start()
        if self._noting is not None:
            self._noting.result()

    def _start(self) -> None:
        if self._noting is not None:
            self._noting.result()
        self._noting = self._thread.submit(self._note, len(self._written))

    def _note(self, count: int) -> None:
        begin = monotonic()
        for out in self._outs:
            flush(out)
        self._journal.finish(self._written[:count])
        del self._written[:count]
        end = monotonic()
        self._next = end + max(_SECONDS, _RARELY * (end - begin))
