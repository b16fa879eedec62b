"""Gradients of one convolution, planned once and run many times."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from leanconv.algorithms.magnitudes import Magnitudes
from leanconv.api.conv_arguments import fitting_array
from leanconv.api.gradient_graph import NODES, GradientSpec
from leanconv.api.gradient_part import parts_of
from leanconv.api.options import PlanOptions
from leanconv.errors import InputError, memory_reported
from leanconv.runtime.arrays import Lookup
from leanconv.runtime.locks import Unpicklable
from leanconv.runtime.memory import Outputs, SharedArena
from leanconv.runtime.pool import default_threads
from leanconv.units import format_bytes


class Gradients(NamedTuple):
    """The gradients of a loss by the operands of a convolution; None where one is not needed.

    Attributes:
        dx: by the input, of its shape.
        dw: by the weights, of their shape.
        db: by the bias, (K,).
    """

    dx: np.ndarray | None
    dw: np.ndarray | None
    db: np.ndarray | None


class GradientPlan(Unpicklable):
    """Gradients of a convolution, ready to run. Calls from several threads run in turn.

    Weights are data: each run packs them, which counts as part of its time where the algorithm is
    chosen. `copy.deepcopy(plan)` has memory of its own, so that both can run at the same time.

    Attributes:
        spec: the convolution, and which of its gradients are computed.
        parts: what computes them, one after the other in the same memory.
        threads: threads that take part.
        algorithms: the algorithm of dx and of dw, by `"x"` and `"w"`.
        workspace_bytes: memory that runs work in.
        arena: the workspace.
        weight_bytes: of tables that runs read; weights are in the workspace.
    """

    instead = "call leanconv.plan_conv2d_backward where the plan is wanted"

    @memory_reported("planning gradients")
    def __init__(
        self,
        spec: GradientSpec,
        options: PlanOptions,
        algorithms: Mapping[str, str],
        any_size: bool = False,
    ) -> None:
        self.spec, self.threads = spec, options.threads or default_threads()
        self.parts = parts_of(spec, options, algorithms, any_size)
        self.algorithms = {
            need: part.algorithm for part in self.parts for need in part.needs if need in NODES
        }
        self.workspace_bytes = max(part.workspace_bytes for part in self.parts)
        self._tables = [part.filled() for part in self.parts]
        self.weight_bytes = sum(tables.bytes for tables in self._tables)
        self._find = {name: Lookup(spec.shapes[name], spec.dtype) for name in spec.reads}
        self._found = {
            name: Lookup(spec.shapes[name], spec.dtype, writeable=True) for name in spec.results
        }
        outputs = Outputs()
        self._new = {n: outputs.maker(spec.shapes[n], spec.dtype) for n in spec.results}
        self._link()

    def _link(self, arena: SharedArena | None = None) -> None:
        self.arena = (arena or SharedArena()).part(self.workspace_bytes)
        pairs = zip(self.parts, self._tables, strict=True)
        self._runs = [
            (part.linked(self.arena), itemgetter(*part.reads, *part.results), tables.address)
            for part, tables in pairs
        ]

    def __deepcopy__(self, memo: dict[int, Any]) -> GradientPlan:
        made = memo[id(self)] = self.copied()
        return made

    def copied(self, arena: SharedArena | None = None) -> GradientPlan:
        """A copy with a workspace of its own, or in an arena where others work, too."""
        made = copy.copy(self)
        made._link(arena)
        return made

    def run_at(self, addresses: Mapping[str, int]) -> None:
        """Compute with contiguous arrays by their addresses.

        Args:
            addresses: of each name of `spec.reads` and `spec.results`; none that is written
                overlaps another one.
        """
        for run, arrays, tables in self._runs:
            run((*arrays(addresses), tables))

    def __copy__(self) -> GradientPlan:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    @property
    def dy_shape(self) -> tuple[int, ...]:
        """The shape of the output's gradient."""
        return self.spec.shapes["dy"]

    @property
    def memory_bytes(self) -> int:
        """Workspace and tables."""
        return self.workspace_bytes + self.weight_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes that the runtime has allocated for this plan."""
        return self.arena.bytes + sum(tables.bytes for tables in self._tables)

    @property
    def predicted_errors(self) -> dict[str, float]:
        """Expected relative error of each gradient in the max norm, for data of random sign."""
        return {name: error for part in self.parts for name, error in part.errors.items()}

    @property
    def predicted_error(self) -> float:
        """The largest of `predicted_errors`."""
        return max(self.predicted_errors.values())

    @property
    def magnitudes(self) -> Magnitudes:
        """The bounds within which the errors of dx and dw hold, where one operand is of size 1.

        That is w for dx and dy for dw; the input is the other operand. Where the absolute numbers
        that make one result of it add up to S > 1, inputs may be up to `most_input` / S.
        """
        found = [each for part in self.parts if (each := part.magnitudes)]
        return Magnitudes.of_all(found) if found else Magnitudes(0.0, math.inf)

    def __repr__(self) -> str:
        return f"<GradientPlan {self.spec}: {self.algorithms}, {format_bytes(self.memory_bytes)}>"

    def explain(self) -> str:
        """Say how each gradient is computed, what it needs, and why not otherwise."""
        lines = [f"{self.spec}", *(part.explain() for part in self.parts)]
        if self.algorithms:
            lines.append(f"  errors are {self.magnitudes} (docs/algorithms.md, Magnitudes)")
        return "\n".join(lines)

    def __call__(
        self,
        x: np.ndarray | None = None,
        w: np.ndarray | None = None,
        dy: np.ndarray | None = None,
        out: Gradients | None = None,
    ) -> Gradients:
        """Compute the gradients.

        Args:
            x, w, dy: input, weights and the gradient of the output, contiguous arrays are read in
                place. dx is made of w and dy, dw of x and dy, db of dy: what is not read may be
                None.
            out: arrays to write to, where they are not None: contiguous, and no part of another
                one.

        Returns:
            New arrays, or those of `out`.

        Raises:
            InputError: an array does not fit the plan.
            LeanConvError: there is no memory for a result.
        """
        given, addresses = {"x": x, "w": w, "dy": dy}, dict[str, int]()
        held = list[np.ndarray]()
        for name, find in self._find.items():
            array = given[name]
            address = find(array)
            if not address:
                array = self._fitting(name, array)
                address = array.ctypes.data
            held.append(array)  # type: ignore[arg-type]
            addresses[name] = address
        if out is not None:
            self._check_wanted(out)
        results: dict[str, np.ndarray] = {}
        for name, new in self._new.items():
            wanted = None if out is None else getattr(out, name)
            if wanted is None:
                results[name], addresses[name] = new()
            else:
                addresses[name] = address = self._found[name](wanted)
                self._check_output(name, wanted, address, [*held, *results.values()])
                results[name] = wanted
        self.run_at(addresses)
        return Gradients(results.get("dx"), results.get("dw"), results.get("db"))

    def _fitting(self, name: str, array: np.ndarray | None) -> np.ndarray:
        """An array as kernels read it."""
        try:
            return fitting_array(name, array, self.spec.shapes[name], self.spec.dtype)  # type: ignore[arg-type]
        except InputError as error:
            if name == "dy" and getattr(array, "dtype", None) == self.spec.dtype:
                raise InputError(f"{error}: the shape of the convolution's output") from None
            raise

    def _check_wanted(self, out: Gradients) -> None:
        if not isinstance(out, Gradients):
            raise InputError(f"out is {type(out).__name__}; expected Gradients(dx, dw, db)")
        for name, array in out._asdict().items():
            if array is not None and name not in self.spec.results:
                raise InputError(
                    f"out.{name} is given, but the plan computes {', '.join(self.spec.results)}; "
                    "expected None"
                )

    def _check_output(
        self, name: str, array: np.ndarray, address: int, others: list[np.ndarray]
    ) -> None:
        """Check an array of the user for a result."""
        if not address:
            checked = fitting_array(f"out.{name}", array, self.spec.shapes[name], self.spec.dtype)
            if checked is not array or not array.flags.writeable:
                raise InputError(f"out.{name} is not contiguous and writeable; expected such")
        if any(np.may_share_memory(array, other) for other in others):
            raise InputError(
                f"out.{name} shares memory with another array; expected one of its own"
            )
