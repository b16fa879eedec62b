"""The plan of a network over one large image: windows, how they are computed, all bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise, product
from math import ceil, lcm, prod
from types import MappingProxyType

import numpy as np

from leanconv.api.inputs import Shape
from leanconv.api.tile_backend import TileBackend
from leanconv.errors import BudgetError, InputError, LeanConvError, UnsupportedError
from leanconv.graph.fields.receptive_fields import InputAxis
from leanconv.graph.ir import Graph, is_filled
from leanconv.planner.decisions import Decision
from leanconv.planner.image_tiles.layout import ImageNetwork, Layout, TileTooSmallError
from leanconv.planner.image_tiles.windows import Windows, fewest_read_twice
from leanconv.planner.plan_file import graph_digest
from leanconv.progress import steps
from leanconv.records import cached_property, dataclass
from leanconv.units import counted, format_bytes, format_ns, shape_text

# Pixels of the windows that are tried: from where margins are most of a window to where they are
# next to nothing.
_LEAST_PIXELS, _MOST_PIXELS = 1 << 10, 1 << 23
_WHOLE, _SHARES = 16, range(8, 17)  # and of sizes between them
_MOST_GUESSES = 6  # of these
_LARGE = 64  # times the extents of an image that is larger than what one pixel reads
_ALIKE = 32  # without a limit, a plan may take this part longer than the fastest one

NO_CHUNKS: Mapping[str, Shape] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class TilePlan:
    """The plan of a network over one image.

    Attributes:
        windows: where they lie, and what is right in them.
        decisions: how their nodes are computed.
        network_bytes: weights and arena.
        window_ns: the estimated time of one window.
        units: per group of axes, windows begin at multiples of the first, and the next one reads at
            least the second again.
        chunks: per group of axes, of what parts results are to begin; 1 for any.
        limit: of `memory_bytes`; None for none.
        threads: that take part.
    """

    windows: Windows
    decisions: tuple[Decision, ...]
    network_bytes: int
    window_ns: int
    units: tuple[tuple[int, int], ...]
    chunks: tuple[int, ...]
    limit: int | None
    threads: int

    @property
    def input_bytes(self) -> int:
        """Bytes that a window reads of all inputs."""
        graph = self.windows.window
        return sum(graph.types[name].bytes for name in graph.inputs)

    @property
    def output_bytes(self) -> int:
        """Bytes of all results of a window."""
        graph = self.windows.window
        return sum(graph.types[name].bytes for name in graph.outputs)

    @property
    def memory_bytes(self) -> int:
        """All that a run holds besides the arrays that it is given: one window is read while
        another one is computed, and a third one written."""
        return self.network_bytes + 2 * self.input_bytes + 2 * self.output_bytes

    @property
    def tiles(self) -> int:
        """The number of windows."""
        return self.windows.count

    @property
    def keeps_chunks(self) -> bool:
        """True if no two windows write into one chunk of a result."""
        triples = zip(self.windows.begins, self.windows.cuts, self.chunks, strict=True)
        return all(cut is not None or len(at) < 2 or chunk < 2 for at, cut, chunk in triples)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of all inputs for the whole image."""
        whole = self.windows.whole
        return tuple(whole.types[name].shape for name in whole.inputs)

    @property
    def tile_shapes(self) -> dict[str, Shape]:
        """The shape of each input's windows."""
        graph = self.windows.window
        return {name: graph.types[name].shape for name in graph.inputs}

    @property
    def predicted_ns(self) -> int:
        """The estimated time of all windows."""
        return self.window_ns * self.tiles

    @cached_property
    def key(self) -> str:
        """A digest of all that decides what each tile is."""
        windows = self.windows
        facts = (
            graph_digest(windows.whole),
            graph_digest(windows.window),
            f"{windows.begins} {windows.cuts}",
            *(str(each.choice) for each in self.decisions),
            _constants_digest(windows.whole),
        )
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]

    def explain(self) -> str:
        """Say which windows there are, what they cost, and which axes are cut."""
        windows, lines = self.windows, []
        for name, shape in self.tile_shapes.items():
            whole = windows.whole.types[name].shape
            lines.append(f"{name}: {shape_text(whole)} in windows of {shape_text(shape)}")
        cut = windows.cutting
        pairs = zip(cut.extents(windows.whole), cut.extents(windows.window), strict=True)
        triples = zip(cut.groups, windows.begins, pairs, strict=True)
        for group, begins, (extent, part) in triples:
            if len(begins) == 1:
                continue
            name, axis = group.base
            step = max(end - begin for begin, end in pairwise(begins))
            lines.append(
                f"  axis {axis} of {name}: {len(begins)} windows of {part}, {step} apart "
                f"({part - step} are read twice), of {extent}"
            )
        for (name, axis), because in cut.whole.items():
            lines.append(f"  axis {axis} of {name} is not cut, because of {because}")
        lines += (
            f"{counted(self.tiles, 'tile')}, {windows.overlap:.2f} times the pixels of the image; "
            f"predicted {format_ns(self.predicted_ns)} with {counted(self.threads, 'thread')}",
            f"memory {format_bytes(self.memory_bytes)}: weights and arena "
            f"{format_bytes(self.network_bytes)}, windows of inputs and outputs "
            f"{format_bytes(self.memory_bytes - self.network_bytes)}",
        )
        return "\n".join(lines)


class TilePlanner:
    """Plans of one network for one image.

    Args:
        backend: of the network.
        shapes: the image's, of all inputs.
        limit: bytes that a run may hold; None for no limit.
        chunks: of outputs that are written in chunks, their extents: a window that writes a part of
            a chunk reads and writes all of it.
    """

    def __init__(
        self,
        backend: TileBackend,
        shapes: tuple[Shape, ...],
        limit: int | None,
        chunks: Mapping[str, Shape] = NO_CHUNKS,
    ) -> None:
        self._backend, self._limit = backend, limit
        axes = _open_axes(backend, shapes)
        self.image = ImageNetwork(backend.graph, backend.decide, shapes, axes)
        if self.image.whole.late:
            raise UnsupportedError(
                "the network computes with extents that are data, which tiles cannot have; run it "
                "whole"
            )
        cut = self.image.cutting
        self._chunks = _chunk_steps(self.image, chunks)
        self._batch = [group.base[1] == 0 for group in cut.groups]
        self._extents = list(zip(self.image.extents, self._batch, strict=True))
        spatial = [extent for extent, batch in self._extents if not batch and extent > 1]
        if not spatial and cut.whole and not self._is_local_if_large(shapes, axes):
            (name, axis), because = next(iter(cut.whole.items()))
            raise UnsupportedError(
                f"{because} reads all of axis {axis} of {name!r}: the network is not local, and "
                "cannot be run in tiles; run it whole"
            )

    def _is_local_if_large(self, shapes: tuple[Shape, ...], axes: Sequence[InputAxis]) -> bool:
        """Return whether a larger image could be cut, though all of this one is read at once."""
        numbers = {each.name: n for n, each in enumerate(self._backend.model.inputs)}
        large = [list(shape) for shape in shapes]
        for name, axis in axes:
            large[numbers[name]][axis] *= _LARGE if axis else 1
        try:
            image = ImageNetwork(
                self._backend.graph, self._backend.decide, tuple(map(tuple, large)), axes
            )
        except LeanConvError:
            return False
        return any(group.base[1] for group in image.cutting.groups)

    def of_tile(self, tile: Sequence[int]) -> TilePlan:
        """The plan for windows of these extents, of the axes that are cut besides the batch.

        Raises:
            InputError: windows would be too small, or there are not as many axes.
            BudgetError: windows of these extents are beyond the limit.
        """
        spatial = self._batch.count(False)
        if len(tile) not in (1, spatial):
            raise InputError(
                f"tile is {tuple(tile)}; expected one number, or one for each of "
                f"{counted(spatial, 'axis', 'axes')} that can be cut"
            )
        given = iter(tuple(tile) * (spatial if len(tile) == 1 else 1))
        wanted = [1 if batch else next(given) for batch in self._batch]
        try:
            found = self._plan(self.image.layout(wanted, self._chunks))
        except TileTooSmallError as error:
            needed = [n for n, batch in zip(error.needed, self._batch, strict=True) if not batch]
            raise InputError(
                f"tile is {tuple(tile)}, of which the network's margins leave nothing; expected "
                f"at least {shape_text(needed)}"
            ) from error
        if self._limit is not None and found.memory_bytes > self._limit:
            raise self._beyond(found)
        return found

    def best(self) -> TilePlan:
        """The plan of the least predicted time within the limit; of similar times the smallest.

        Raises:
            BudgetError: none keeps the limit.
        """
        found: list[TilePlan] = []
        least: TilePlan | None = None
        sizes = _sizes(self._extents)
        for wanted in steps("choosing tiles", sizes, len(sizes)):
            coarse = self._of(wanted)
            if coarse is None:
                continue
            found.append(coarse)
            if least is None or coarse.memory_bytes < least.memory_bytes:
                least = coarse
            if self._limit is not None and coarse.memory_bytes > self._limit:
                break
        if least is None:
            raise UnsupportedError(
                "the network's margins are larger than any tile that was tried; run it whole"
            )
        found += self._even(found)
        fitting = [each for each in found if self._fits(each.memory_bytes)]
        if not fitting:
            raise self._beyond(least)
        fitting = [each for each in fitting if each.keeps_chunks] or fitting
        time = min(each.predicted_ns for each in fitting)
        if self._limit is None:
            time += time // _ALIKE
        alike = (each for each in fitting if each.predicted_ns <= time)
        return min(alike, key=lambda each: each.memory_bytes)

    def _even(self, found: Sequence[TilePlan]) -> list[TilePlan]:
        """Plans for extents that divide the image well, near some that were found."""
        guesses: dict[tuple[int, ...], float] = {}
        for near in found:
            extents = near.windows.cutting.extents(near.windows.window)
            for share in _SHARES:
                wanted = _extents(self._extents, share * self._pixels(extents) // _WHOLE)
                for chosen in product(*self._divided(wanted, near.units)):
                    tried = tuple(extent for extent, _ in chosen)
                    part = self._pixels(tried) / self._pixels(extents)
                    small = self._pixels(tried) <= 2 * _MOST_PIXELS
                    if small and self._fits(int(near.memory_bytes * part)):
                        count = prod(count for _, count in chosen)
                        guesses[tried] = near.window_ns * part * count
        best = sorted(guesses, key=guesses.__getitem__)[:_MOST_GUESSES]
        plans = (self._of(wanted) for wanted in steps("choosing tiles", best, len(best)))
        return [plan for plan in plans if plan is not None]

    def _divided(
        self, wanted: Sequence[int], units: Sequence[tuple[int, int]]
    ) -> list[list[tuple[int, int]]]:
        """Per group, extents near the one that is wanted, and how many windows each makes."""
        found = []
        groups = zip(self._extents, wanted, units, self._chunks, strict=True)
        for (extent, batch), want, (step, margin), chunk in groups:
            beside = margin + step - 1  # what a window has besides its chunks
            if batch:
                found.append([(1, extent)])
            elif chunk > 1 and beside + chunk < extent:
                count = max(1, (want - beside) // chunk)
                moves = (count * chunk, (count + 1) * chunk)
                found.append([(min(extent, beside + move), ceil(extent / move)) for move in moves])
            else:
                found.append([fewest_read_twice(extent, want, step, margin)])
        return found

    def _pixels(self, extents: Sequence[int]) -> int:
        return prod(n for n, batch in zip(extents, self._batch, strict=True) if not batch)

    def _of(self, wanted: Sequence[int]) -> TilePlan | None:
        """The plan for windows of at least these extents; None where they are too small."""
        try:
            return self._plan(self.image.layout(wanted, self._chunks))
        except TileTooSmallError:
            return None

    def _fits(self, memory_bytes: int) -> bool:
        return self._limit is None or memory_bytes <= self._limit

    def _beyond(self, found: TilePlan) -> BudgetError:
        needed = found.memory_bytes
        return BudgetError(
            f"tiles of {', '.join(map(shape_text, found.tile_shapes.values()))} need "
            f"{counted(needed, 'byte')} ({format_bytes(needed)}), the limit is "
            f"{format_bytes(self._limit or 0)}; give memory_limit={needed} or more, or smaller "
            "tiles",
            needed,
        )

    def _plan(self, layout: Layout) -> TilePlan:
        graph = layout.windows.window
        planner = self._backend.planner(graph).unmerged
        placed = planner.place_plan(layout.decisions, None)
        window_ns = sum(placed.step_estimates())
        return TilePlan(
            layout.windows,
            layout.decisions,
            placed.memory_bytes,
            window_ns,
            tuple(zip(layout.steps, layout.margins, strict=True)),
            self._chunks,
            self._limit,
            self._backend.threads,
        )


def _constants_digest(graph: Graph) -> str:
    """A digest of the weights, so that tiles of other ones are not taken for these."""
    digest = hashlib.sha256()
    for name, array in sorted(graph.constants.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        held = array.reshape(-1)[:1] if is_filled(array) else array
        digest.update(np.ascontiguousarray(held).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _open_axes(backend: TileBackend, shapes: tuple[Shape, ...]) -> tuple[InputAxis, ...]:
    found = []
    for declared, shape in zip(backend.model.inputs, shapes, strict=True):
        extents = declared.shape or (None,) * len(shape)
        found += [(declared.name, a) for a, n in enumerate(extents) if not isinstance(n, int)]
    if not any(axis for _, axis in found):
        listed = ", ".join(shape_text(each.shape) for each in backend.model.inputs)
        raise InputError(
            f"the file fixes the shape of its input ({listed}), so that it takes no tiles; "
            "expected one with open height and width: export it with dynamic axes"
        )
    return tuple(found)


def _chunk_steps(image: ImageNetwork, chunks: Mapping[str, Shape]) -> tuple[int, ...]:
    """Per group, at which multiples chunks of all outputs begin, in indices of its base."""
    found = [1] * len(image.cutting.groups)
    for name in image.whole.outputs if chunks else ():
        for axis, place in image.cutting.places[name].items():
            sizes = chunks.get(name, ())
            length = Fraction(sizes[axis] if axis < len(sizes) else 1) / place.density
            found[place.group] = lcm(found[place.group], length.numerator)
    return tuple(found)


def _sizes(groups: Sequence[tuple[int, bool]]) -> list[list[int]]:
    """Extents of windows to try, per group, from small to large: as square as the image allows."""
    found: list[list[int]] = []
    pixels = _LEAST_PIXELS
    while pixels <= _MOST_PIXELS:
        wanted = _extents(groups, pixels)
        if wanted not in found:
            found.append(wanted)
        pixels *= 2
    return found


def _extents(groups: Sequence[tuple[int, bool]], pixels: int) -> list[int]:
    """Extents of one window of about so many pixels; of a batch, one image."""
    wanted = [1] * len(groups)
    left = sorted((extent, n) for n, (extent, batch) in enumerate(groups) if not batch)
    for done, (extent, number) in enumerate(left):
        side = ceil((pixels / max(1, prod(wanted))) ** (1 / (len(left) - done)))
        wanted[number] = min(extent, side)
    return wanted
