"""`leanconv.tiled`: a network over images of any size, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from leanconv.api.inputs import Shape, input_specs
from leanconv.api.network import Network
from leanconv.api.options import checked_limit
from leanconv.api.tile_arrays import (
    check_apart,
    chunks_of,
    placed_facts,
    read,
    seen_inputs,
    seen_outputs,
)
from leanconv.api.tile_backend import TileBackend, tile_backend
from leanconv.api.tile_journal import Journal
from leanconv.api.tile_layouts import Layouts, source
from leanconv.api.tile_plan import TilePlan, TilePlanner
from leanconv.api.tile_run import run_tiles
from leanconv.errors import InputError, SpecError, memory_reported, short
from leanconv.graph.network_inputs import Names
from leanconv.planner.image_tiles.windows import Index
from leanconv.progress import Progress, checked_progress, working
from leanconv.runtime.locks import Lock

_MOST_PLANS = 16  # image sizes whose plans are kept


def tiled(
    net: Network,
    *,
    memory_limit: int | str | None = None,
    tile: int | Sequence[int] | None = None,
) -> Tiled:
    """Make a network that runs over images of any size, window by window.

    The network must be local (no global pooling, no attention over pixels, …), and its file must
    leave the image's height and width open. Windows overlap by what the network reads around each
    pixel. Each pixel of the result has the bits that `Tiled.whole` gives, which runs the whole
    image at once with the same algorithms: there are no seams.

    Args:
        net: a network for the CPU, from `leanconv.load` or `leanconv.filter_bank`. Its options
            count, but for `memory_limit`, `tune` and `stream_weights`.
        memory_limit: bytes, or text such as `"512 MiB"`, that weights, buffers and windows may take
            together. Arrays that are given do not count.
        tile: the least extents of a window, of the axes that are cut besides the batch: one number
            for all, or one for each. By default those are chosen that are estimated to take the
            least time within the limit.

    Returns:
        What is called as the network is.

    Raises:
        SpecError: an argument makes no sense.
        UnsupportedError: the network cannot be run in tiles; the message names the node.
    """
    if not isinstance(net, Network):
        raise SpecError(
            f"net is {short(net)}; expected a network from leanconv.load, or of a convolution "
            "from leanconv.filter_bank(w)"
        )
    return Tiled(tile_backend(net), checked_limit(memory_limit), _checked_tile(tile))


def _checked_tile(tile: Any) -> tuple[int, ...] | None:
    if tile is None:
        return None
    numbers = (tile,) if isinstance(tile, Integral) else tuple(tile) if _listed(tile) else ()
    counts = tuple(int(n) for n in numbers if isinstance(n, Integral))
    if not counts or len(counts) < len(numbers) or min(counts) < 1:
        raise SpecError(f"tile is {short(tile)}; expected a positive number, or one for each axis")
    return counts


def _listed(tile: Any) -> bool:
    return isinstance(tile, Sequence | np.ndarray) and not isinstance(tile, str | bytes)


def _all_of(image: Any) -> Index:
    return tuple(slice(0, n) for n in image.shape)


class Tiled:
    """A network over images of any size; `leanconv.tiled` makes it.

    Calls of several threads wait for each other.
    """

    def __init__(
        self, backend: TileBackend, limit: int | None, tile: tuple[int, ...] | None
    ) -> None:
        self._backend, self._limit, self._tile = backend, limit, tile
        self.inputs = input_specs(backend.model, backend.dtype)
        self._names = Names(tuple(each.name for each in self.inputs), backend.model.outputs)
        self._plans: dict[object, TilePlan] = {}
        self._current: TilePlan | None = None
        self._network: tuple[TilePlan, Network] | None = None
        self._lock = Lock("a call of the same network in tiles")

    # -- running ---------------------------------------------------------------------------
    def __call__(
        self,
        *arrays: Any,
        out: Any = None,
        layout: Layouts = None,
        out_layout: Layouts = None,
        journal: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
        **named: Any,
    ) -> Any:
        """Run a network of one output: `tiled(x)`, `tiled(x, out=y)`.

        Args:
            arrays, named: the inputs, as a network takes them: anything with `shape`, `dtype` and
                slices (NumPy, `np.memmap`, Zarr, …). Integers that the network's floats hold
                exactly are converted.
            out: where the result is written: anything of its shape and dtype that slices can be
                assigned to. A new array by default.
            layout: a letter for each axis of the arrays, where they are not in the network's
                order: `"HWC"`, `"YX"`, `"TCZYX"`; by the names of inputs if there are several.
                Images of `leanconv.images.open_image` know their own.
            out_layout: that of the results; `layout` by default.
            journal: a file that says which tiles are finished. If a run was killed, the same call
                is continued: what finished tiles read and wrote is read again, and where
                it has changed they are computed again. When all is done, the file is removed.
            progress: called as `progress("computing tiles", done, total)`; what it raises ends the
                run.

        Returns:
            `out`, or the new array.

        Raises:
            InputError: an array does not fit, `out` lies where an input lies, another run has the
                journal, or the network has several outputs: `run` has them.
        """
        given = self._names.called(arrays, named)
        outs = {} if out is None else {self._names.outputs[0]: out}
        found = self._run(given, outs, layout, out_layout, journal, progress)
        return found[self._names.outputs[0]]

    def run(
        self,
        inputs: Mapping[str, Any],
        out: Mapping[str, Any] | None = None,
        *,
        layout: Layouts = None,
        out_layout: Layouts = None,
        journal: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Run a network of any outputs: `tiled.run({"x": x}, out={"y": y})`.

        Args:
            inputs: by name.
            out: where outputs are written, by name; new arrays for those that are not there.
            layout, out_layout, journal, progress: as for a call.

        Returns:
            All outputs by name.
        """
        unknown = sorted(set(out or {}) - set(self._names.outputs))
        if unknown:
            raise InputError(
                f"out has {unknown[0]!r}; expected outputs: {', '.join(self._names.outputs)}"
            )
        given, outs = self._names.ordered(inputs), dict(out or {})
        return self._run(given, outs, layout, out_layout, journal, progress)

    @memory_reported("running a network in tiles")
    def _run(
        self,
        given: Sequence[Any],
        outs: dict[str, Any],
        layout: Layouts,
        out_layout: Layouts,
        journal: str | os.PathLike[str] | None,
        progress: Progress | None,
    ) -> dict[str, Any]:
        fresh = [name for name in self._names.outputs if outs.get(name) is None]
        if journal is not None and fresh:
            raise InputError(
                f"a journal is given, and no out for {fresh[0]!r}; expected the array that keeps "
                "the results of finished tiles"
            )
        with self._lock.held, working("tiles", checked_progress(progress)):
            if out_layout is None and isinstance(layout, str):
                out_layout = layout
            images = seen_inputs(given, self.inputs, layout)
            shapes = dict(zip(self._names.outputs, self._backend.model.output_shapes, strict=True))
            plan = self._plan_for(images, chunks_of(outs, shapes, images, out_layout))
            made = seen_outputs(plan.windows.whole, outs, out_layout)
            named = dict(zip(self._names.inputs, images, strict=True))
            check_apart(named, {name: out for name, out in made.items() if name not in fresh})
            if any(plan.windows.whole.types[name].elements for name in made):
                with journal if isinstance(journal, Journal) else Journal(journal) as finished:
                    if finished.is_kept:
                        facts = {"plan": self._key(plan), **placed_facts(named, made)}
                        finished.begin(facts, plan.tiles)
                    run_tiles(self._network_of(plan), plan, self.inputs, images, made, finished)
        return {n: source(each) if n in fresh else outs[n] for n, each in made.items()}

    def whole(
        self, *arrays: Any, layout: Layouts = None, out_layout: Layouts = None, **named: Any
    ) -> Any:
        """Run a whole image at once, with the algorithms of its tiles: the same bits.

        It takes the memory of a network of that size. `net(x)` may choose other algorithms, whose
        results differ by rounding.

        Args:
            arrays, named, layout, out_layout: as for a call.

        Returns:
            The output; of a network of several ones, all by name.
        """
        given = Names(self._names.inputs, self._names.outputs[:1]).called(arrays, named)
        images = seen_inputs(given, self.inputs, layout)
        parts = {
            spec.name: read(image, _all_of(image), spec)
            for image, spec in zip(images, self.inputs, strict=True)
        }
        with self._lock.held:
            plan = self._plan_for(images)
            found = self._network_of(plan).run(parts)
        letters = layout if out_layout is None and isinstance(layout, str) else out_layout
        if letters is not None:
            made = seen_outputs(plan.windows.whole, {}, letters)
            for name, out in made.items():
                out[_all_of(out)] = found[name]
            found = {name: source(out) for name, out in made.items()}
        return next(iter(found.values())) if len(found) == 1 else found

    # -- planning --------------------------------------------------------------------------
    def bind(
        self, shapes: Mapping[str, Sequence[int]] | Sequence[int], progress: Progress | None = None
    ) -> TilePlan:
        """Plan for an image's shape without running; `plan` shows it.

        Args:
            shapes: the shape of every input by name, or that of the only input.
            progress: as for `leanconv.load`.
        """
        with self._lock.held, working("tiles", checked_progress(progress)):
            return self._plan_of(tuple(self._names.shapes(shapes)))

    def bind_images(
        self,
        inputs: Mapping[str, Any],
        *,
        layout: Layouts = None,
        progress: Progress | None = None,
    ) -> TilePlan:
        """Plan for images without running.

        Args:
            inputs: by name.
            layout, progress: as for a call.
        """
        with self._lock.held, working("tiles", checked_progress(progress)):
            return self._plan_for(seen_inputs(self._names.ordered(inputs), self.inputs, layout))

    def _plan_for(
        self, images: Sequence[Any], chunks: Mapping[str, Shape] | None = None
    ) -> TilePlan:
        return self._plan_of(tuple(tuple(int(n) for n in i.shape) for i in images), chunks)

    def _plan_of(
        self, shapes: tuple[Shape, ...], chunks: Mapping[str, Shape] | None = None
    ) -> TilePlan:
        """The plan for an image, and for results in these chunks; in any if None."""
        current = self._current
        if chunks is None and current is not None and current.shapes == shapes:
            return current
        key = shapes, tuple(sorted((chunks or {}).items()))
        plan = self._plans.get(key)
        if plan is None:
            planner = TilePlanner(self._backend, shapes, self._limit, chunks or {})
            plan = planner.best() if self._tile is None else planner.of_tile(self._tile)
            while len(self._plans) >= _MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        self._current = plan
        return plan

    def _key(self, plan: TilePlan) -> str:
        """A digest of all that decides the bits of each tile: of the plan, and of the CPU."""
        target = self._backend.target
        return f"{plan.key} {target.isa} {target.vector_bytes}"

    def _network_of(self, plan: TilePlan) -> Network:
        """The network whose nodes are computed as a plan says, for windows and the whole."""
        if self._network is None or self._network[0] is not plan:
            self._network = plan, Network(self._backend.pinning(plan.decisions), "tiles")
        return self._network[1]

    @property
    def plan(self) -> TilePlan:
        """The plan for the image seen last.

        Raises:
            InputError: none has been seen.
        """
        if self._current is None:
            raise InputError("nothing has been planned yet; run an image, or tiled.bind(shape)")
        return self._current

    def explain(self) -> str:
        """Say which windows the image seen last is run in, and what they cost."""
        return self.plan.explain()
