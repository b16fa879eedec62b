"""A network from an ONNX file, ready to run on a CPU or a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from leanconv.api.backend import (
    Backend,
    Compiled,
    Footprint,
    NetworkFacts,
    Planned,
    PlanningBackend,
    ProfileRow,
    profile_rows,
)
from leanconv.api.called_by_name import CalledByName
from leanconv.api.inputs import (
    NOTHING_KNOWN,
    Known,
    Ports,
    Shape,
    planned_specs,
    validated_input,
)
from leanconv.api.plan_cache import PlanCache
from leanconv.collector import fewer_collections
from leanconv.errors import InputError, ModelError, SpecError, memory_reported, short
from leanconv.graph.network_inputs import Names, NeedsInputsError, is_small
from leanconv.progress import Progress, checked_progress, spending, working
from leanconv.runtime.locks import Lock
from leanconv.units import shape_text


class Network(CalledByName):
    """A network, its plans for the input shapes seen, and how to run them.

    Calls from several Python threads at once are allowed; on one network they run in turn. A
    `copy.deepcopy(net)` has memory of its own, so that it can run at the same time; `copy.copy`
    shares plans and memory. A pickled network is its model, weights included, with `load`'s
    options, and is planned anew where it is unpickled; where weights are many, send the path and
    call `load` there. A forked process can use the networks of its parent. On a GPU
    arrays with `__dlpack__` are read in place and the outputs stay there if the first input is
    there; such a network can be neither copied nor pickled.

    Attributes:
        inputs: the network's inputs, as the file declares them: each has a `name`, a `shape` and
            a `dtype`.
        outputs: its outputs, in the same form; shapes are those of the plan where the file fixes
            all input shapes, else the file's own, which are not checked.
    """

    def __init__(self, backend: Backend, name: str = "network") -> None:
        ports = backend.ports
        if ports is None:
            ports = Ports.of(backend.model, backend.input_dtype, backend.dtype)
        self._backend, self._name = backend, name
        self.inputs, self.outputs, self._metadata = ports.inputs, ports.outputs, ports.metadata
        kinds = (spec.dtype for spec in self.outputs)
        self._narrow = {n: kind for n, kind in enumerate(kinds) if kind.held != kind}
        super().__init__(
            Names(*(tuple(each.name for each in some) for some in (ports.inputs, ports.outputs)))
        )
        self._plans = PlanCache[Compiled](
            backend.cache_bytes, keep_newest=True, most=backend.most_cached
        )
        self._planning = Lock("the planning of the same network")
        self._current: Compiled | None = None
        small = (n for n, each in enumerate(ports.inputs) if is_small(each.shape, each.dtype))
        self._small = tuple((n, ports.inputs[n].name) for n in small)
        static = [each.static_shape for each in ports.inputs]
        if None not in static:
            with contextlib.suppress(NeedsInputsError):  # planned when their values come
                compiled = self._for_shapes(tuple(s for s in static if s is not None))
                self.outputs = planned_specs(self.outputs, compiled.outputs)
        else:
            for shapes, known in backend.prepare():
                self._for_shapes(shapes, known)

    def __repr__(self) -> str:
        computed = self._backend.dtype
        takes, gives = (
            ", ".join(str(s) if s.dtype == computed else f"{s} of {s.dtype}" for s in specs)
            for specs in (self.inputs, self.outputs)
        )
        return f"<Network {takes} -> {gives}, {computed}>"

    # -- running ---------------------------------------------------------------------------
    def _single(self, x: object) -> Any | None:
        """The output where there is one input and one output and x needs no copy; else None."""
        compiled = self._current
        return compiled.call(x) if compiled and not self._narrow else None

    def _run(self, arrays: Sequence[Any]) -> list[Any]:
        found = self._found(arrays)
        if self._narrow:
            from leanconv.graph.narrow_codes import given  # late: it imports all operations

            for number, kind in self._narrow.items():
                found[number] = given(found[number], kind)
        return found

    def _found(self, arrays: Sequence[Any]) -> list[Any]:
        compiled = self._current
        found = compiled.call_all(arrays) if compiled else None
        if found is not None:
            return found
        taken = self._backend.validated(arrays)
        return self._for_arrays(taken).run(taken)

    # -- planning --------------------------------------------------------------------------
    def bind(
        self,
        shapes: Mapping[str, Sequence[int] | np.ndarray | int] | Sequence[int],
        progress: Progress | None = None,
        *more: object,
    ) -> NetworkFacts:
        """Plan for input shapes without running; later calls with these shapes find the plan.

        Args:
            shapes: the shape of every input by name, or that of the only input. Where the value
                of an input decides what is computed, that stands for its shape: a number, or an
                array.
            progress: a function that is called while this plans, as by `load`.
            more: refused: extents that were given one by one.

        Returns:
            The plan, which is now the one that `plan` shows.

        Raises:
            InputError: the shapes do not fit the file.
            ModelError, UnsupportedError, BudgetError: as `load` raises them.
        """
        if more or (isinstance(shapes, Integral) and isinstance(progress, Integral)):
            extents = shapes, progress, *more
            given = ", ".join(str(n) if isinstance(n, Integral) else short(n) for n in extents)
            raise InputError(f"got {given}; give the shape as one tuple: net.bind(({given}))")
        with working(self._name, checked_progress(progress)):
            return self._planned(self._bound(shapes)).plan

    def prepare(
        self,
        shapes: Mapping[str, Sequence[int] | np.ndarray | int] | Sequence[int],
        progress: Progress | None = None,
    ) -> None:
        """Make the network ready for input shapes, as `bind` does, and show no plan.

        Where an earlier process has planned it for them, nothing is planned.

        Args:
            shapes, progress: as for `bind`.

        Raises:
            LeanConvError: as `bind`.
        """
        with working(self._name, checked_progress(progress)):
            self._bound(shapes)

    def specialise(
        self,
        shapes: Mapping[str, Sequence[int]] | Sequence[int],
        progress: Progress | None = None,
    ) -> Network:
        """The network for fixed input shapes, as if its file fixed them.

        Where sizes are open, algorithms are chosen for sizes that stand for a range; here they are
        chosen for these shapes, which takes longer to plan and may run faster. What the file fixes
        may be overridden, if its nodes take that. It packs weights of its own.

        Args:
            shapes: the shape of every input by name, or that of the only input; those that the
                file fixes may be left out.
            progress: a function that is called while this plans, as by `load`.

        Returns:
            Another network, of the same options.

        Raises:
            InputError: the network does not take the shapes.
            ModelError, UnsupportedError, BudgetError: as `load` raises them.
        """
        kept = self._backend.kept(shapes)
        if kept is not None:
            with working(self._name, checked_progress(progress)):
                return Network(kept, self._name)
        from leanconv.api.stated_shapes import are_numbers, misfit, with_shapes

        if not are_numbers(shapes):
            raise InputError(
                f"shapes is {short(shapes)}; expected integers such as (1, 3, 224, 224), or such a "
                "shape by the name of each input"
            )
        backend = self.backend
        model = backend.model
        stated, _ = with_shapes(model, shapes)
        with working(self._name, checked_progress(progress)):
            try:
                return Network(backend.of_model(stated, shapes), self._name)
            except ModelError as error:
                raise misfit(error, model, stated) from error

    def _bound(self, shapes: Any) -> Compiled:
        """The plan for shapes that a user gives, with the values of small inputs among them."""
        known: Known = NOTHING_KNOWN
        if isinstance(shapes, Mapping):
            known = self._values_among(shapes)
            shapes = {**shapes, **{name: array.shape for name, array in known.items()}}
        return self._for_shapes(self._names.shapes(shapes), known)

    def _values_among(self, shapes: Mapping[str, Any]) -> Known:
        """The small inputs for which there are values in place of shapes."""
        given = {
            name: (shapes[name], self.inputs[n])
            for n, name in self._small
            if isinstance(shapes.get(name), int | np.generic | np.ndarray)
        }
        return {name: validated_input(*pair) for name, pair in given.items()}

    def _for_arrays(self, given: Sequence[Any]) -> Compiled:
        """The plan for validated arrays."""
        known = {name: given[n] for n, name in self._small} if self._small else NOTHING_KNOWN
        return self._for_shapes(tuple(tuple(array.shape) for array in given), known)

    def _for_shapes(self, shapes: tuple[Shape, ...], known: Known = NOTHING_KNOWN) -> Compiled:
        """The plan for input shapes, and for values of small inputs, as far as they decide."""
        compiled = self._current
        if compiled is None or not compiled.is_for(shapes, known):
            key = self._backend.deciding.key(shapes, known)
            compiled = self._plans.get(key) or self._compile(shapes, known)
            self._current = compiled
        return compiled

    @memory_reported("planning a network")
    @fewer_collections()
    def _compile(self, shapes: tuple[Shape, ...], known: Known) -> Compiled:
        with working(self._name), self._planning.held, spending("planning"):
            found = self._plans.get(self._backend.deciding.key(shapes, known))
            if found is None:
                found = self._made(shapes, known)
                held = found.held
                key = self._backend.deciding.key(shapes, known)  # what decides is known by now
                self._plans.put(key, found, held.own_bytes, held.blocks, held.working_bytes)
            return found

    def _made(self, shapes: tuple[Shape, ...], known: Known) -> Compiled:
        try:
            found = self._backend.compile(shapes, known)
            while found is None:  # no snapshot has these shapes
                found = self.backend.compile(shapes, known)
        except ModelError as error:
            from leanconv.api.stated_shapes import with_sizes

            raise with_sizes(error, self._backend.model, shapes) from error
        return found

    def _planned(self, compiled: Compiled) -> Planned:
        """A compiled network with its plan, which a snapshot lacks: it is planned again then."""
        found = compiled.planned
        while found is None:
            self._plan_from_file()
            self._current = self._compile(compiled.shapes, NOTHING_KNOWN)
            found = self._current.planned
        return found

    def _plan_from_file(self) -> None:
        """Use no snapshots from now on; weights of those used are freed with the last of them."""
        self._backend = self._backend.whole
        self._plans.clear()

    # -- copies ----------------------------------------------------------------------------
    def __copy__(self) -> Network:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._backend = self._backend.copied(None)
        copied._planning = Lock("the planning of the same network")
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        copied = memo[id(self)] = _received(*self._sent())
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, self._sent()

    def _sent(self) -> tuple[Backend, str]:
        return self._backend.copied(self._current), self._name

    # -- what is known ---------------------------------------------------------------------
    @property
    def backend(self) -> PlanningBackend:
        """The planner and compiler of the network."""
        whole = self._backend.whole
        if whole is not self._backend:
            self._plan_from_file()
        return whole

    @property
    def compiler(self) -> Backend:
        """What compiles the network: by snapshots, where it is from one, until one is missing."""
        return self._backend

    @property
    def metadata(self) -> dict[str, str]:
        """The file's own key-value pairs."""
        return dict(self._metadata)

    @property
    def compiled(self) -> Planned:
        """The compiled network for the input shapes seen last, with its plan.

        Raises:
            InputError: the shapes are not fixed by the file, and nothing has been run yet.
        """
        return self._planned(self.in_use)

    @property
    def in_use(self) -> Compiled:
        """The compiled network for the input shapes seen last; without a plan, if of a snapshot.

        Raises:
            InputError: as `compiled`.
        """
        if self._current is None:
            specs = ", ".join(f"{spec.name} {shape_text(spec.shape)}" for spec in self.inputs)
            raise InputError(
                f"the file does not fix the input shapes ({specs}); run the network first, or "
                "plan it with net.bind(shape)"
            )
        return self._current

    @property
    def plan(self) -> NetworkFacts:
        """The plan for the input shapes seen last.

        Raises:
            InputError: the shapes are not fixed by the file, and nothing has been run yet.
        """
        return self.compiled.plan

    @property
    def memory_bytes(self) -> int:
        """Bytes that the plan in use predicts, which a snapshot has without the plan."""
        return self.in_use.memory_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that were allocated for the plan in use."""
        return self.in_use.used_bytes

    @property
    def kept_bytes(self) -> int:
        """Bytes of all plans that are kept, their code included, and of free large outputs."""
        return self._plans.held_bytes + self._backend.output_bytes

    def footprint(self) -> Footprint:
        """Say what the network and the process around it take of memory now, in bytes.

        Of networks on a GPU, `code` is what the device holds.
        """
        held = self._plans.held
        private = self._backend.private_bytes(held)
        return Footprint.of(held, self._backend.output_bytes, private)

    def profile(self, x: Any | Mapping[str, Any], repeats: int = 20) -> list[ProfileRow]:
        """Run step by step and time each one.

        Args:
            x: the input, or all inputs by name.
            repeats: timed runs.

        Returns:
            One row for each step of the plan, in order.

        Raises:
            InputError: an input is missing, unknown, or does not fit.
        """
        if not isinstance(repeats, int) or repeats < 1:
            raise SpecError(f"repeats is {short(repeats)}; expected an integer of at least 1")
        given = self._backend.validated(self._names.arrays(x))
        compiled = self._planned(self._for_arrays(given))
        compiled.run(given)
        times = compiled.time_steps(given, repeats)
        return profile_rows(compiled.plan.steps, times, compiled.step_estimates())

    def explain(self) -> str:
        """Say how every step is computed, with its bytes, and what makes the memory."""
        return self.compiled.explain()

    def report(self, front: bool = True) -> dict[str, Any]:
        """Say of every layer which candidates there were and why all but one lost, as JSON.

        Args:
            front: whether plans for other limits are looked for, too, which takes longer.
        """
        return self.compiled.report(front)


def _received(backend: Backend, name: str) -> Network:
    """A network that was copied or pickled, planned for this process."""
    with working(name):
        return Network(backend, name)
