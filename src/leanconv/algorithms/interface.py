"""Interface of a method: the algorithm, its choices, and the candidate that is compiled.

`with_halves` makes of a method that computes in float32 one on operands that are stored in halves.
The candidate is the one of the same problem in float32. Its kernels read and write halves where the
operand is one (`codegen.half_stored`), and its weights are packed as in float32 and rounded, unless
the method transforms them: what transforms make of weights stays in float32, as products of rounded
numbers would err more. That is four times the bytes of the weights and more: a limit of bytes rules
it out where it is too much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from leanconv.algorithms.common.conv import GroupedConv, with_conv
from leanconv.algorithms.magnitudes import Losses
from leanconv.algorithms.parameters import Choice, Parameters
from leanconv.algorithms.problem import Problem, storage_error
from leanconv.codegen.geometry import PhasedAccess
from leanconv.codegen.half_stored import calls_on_halves, half_stored, halved_calls
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.kernels.packing import copied
from leanconv.records import dataclass, field, replace
from leanconv.spec.conv import Propagation
from leanconv.spec.format import aligned
from leanconv.target import Target
from leanconv.types import FLOAT32, FLOATS, HALVES, SINGLE, DType, Precision


@dataclass(frozen=True)
class KernelUse:
    """One kernel of a candidate, with the role of each of its operands.

    A role is `"x"`, `"y"`, `"residual"`, a constant that `Candidate.packing` packs, or one of
    `Candidate.temporaries`; the last one is what the kernel writes.
    """

    kernel: Kernel
    roles: tuple[str, ...]


_PACKED_ROLES = frozenset(
    {"w", "bias", "slope", "scale", "quantisation", "runs", "places", "heads", "firsts"}
)
# Makes the calls that pack (weights, {"bias": …, "slope": …}) into constants by role: their pieces,
# one after the other. The weights may be any view of an array.
PackingOf = Callable[[np.ndarray, Mapping[str, np.ndarray]], dict[str, list[PackCall]]]


def packs_nothing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
    """Return no calls: the packing of a candidate without constants."""
    del w, channels
    return {}


def constant_bytes(kernels: Iterable[KernelUse]) -> dict[str, int]:
    """Bytes of each packed constant, by role."""
    return {
        role: use.kernel.constant_bytes[operand]
        for use in kernels
        for operand, role in zip(use.kernel.operands, use.roles, strict=True)
        if operand in use.kernel.constant_bytes
    }


@dataclass(frozen=True, eq=False)
class Candidate:
    """The kernels of a choice for one problem, and how their constants are packed.

    Attributes:
        choice: the algorithm, the parameters that decide the order of summation, and the
            expected error.
        kernels: run one after the other.
        packing: makes the calls that pack (weights, {"bias": …, "slope": …}), by role.
        temporaries: bytes of each buffer between the kernels.
        details: the choice of tiles and the like, for people: `"tile 14x2"`.
        weight_bytes: of transformed weights, where they are larger than the weights given.
        pattern: of weights that are packed by where they are 0; others are packed otherwise.
        of_values: whether the calls hold numbers that are made of the weights: others need calls of
            their own, which raise InputError for weights that are not alike.
        losses: of numbers too small or too large; those of plain sums if None.
    """

    choice: Choice
    kernels: tuple[KernelUse, ...]
    packing: PackingOf = packs_nothing
    temporaries: Mapping[str, int] = field(default_factory=dict)
    details: str = ""
    weight_bytes: int = 0
    pattern: str = ""
    of_values: bool = False
    losses: Losses | None = None

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bytes of each packed constant, by role."""
        return constant_bytes(self.kernels)

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one thread."""
        return aligned(max(use.kernel.scratch_bytes for use in self.kernels))

    @property
    def shared_bytes(self) -> int:
        """All temporaries together, each aligned."""
        return sum(aligned(size) for size in self.temporaries.values())

    def workspace_bytes(self, threads: int) -> int:
        """Return the bytes of temporaries and of all threads' scratch in a run."""
        return self.shared_bytes + self.scratch_bytes * threads

    def packing_cycles(
        self, problem: Problem, target: Target, shape: Sequence[int] | None = None
    ) -> float:
        """Return the cycles of one core in which each run packs the weights.

        Args:
            problem: that it is for.
            target: the machine.
            shape: of the weights as they are packed; (K, C/g, kd, kh, kw) if None.
        """
        conv = problem.conv
        shape = shape or (conv.out_channels, conv.inputs, *conv.window.kernel)
        w = np.empty(shape, conv.precision.w.numpy)  # of any content, which nobody reads
        calls = (call for calls in self.packing(w, {}).values() for call in calls)
        return sum(call.kernel.packing_cycles(target) for call in calls)

    def packing_recipe(self, channels: Sequence[object]) -> Hashable:
        """Return a key of how the weights are packed.

        None if other tables depend on the sizes, or what is packed is made of the weights' values.

        A packing is decided by what is form in a kernel: channels, groups, taps, lanes, tile.

        Args:
            channels: names of the constants beside the weights.
        """
        if self.of_values or not self.constant_bytes.keys() <= _PACKED_ROLES:
            return None
        choice = replace(self.choice, cycles=0.0, error=0.0)
        kernels = tuple(use.kernel.packing for use in self.kernels)
        return str(choice), kernels, tuple(channels), self.pattern


def is_one_float(precision: Precision) -> bool:
    """Return whether all types are one, float32 or float64."""
    return precision.is_uniform and precision.x in FLOATS


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Algorithm(Generic[P]):
    """A method of convolution.

    Attributes:
        name: as the user selects it.
        parameters: the record of those that may go with it, such as `m` in `winograd:m=4`.
        reject: says why a problem cannot be computed this way on a target, None if it can.
        cost: estimated cycles of one core for a problem that is not rejected.
        make: the best candidate with the parameters that are given, for a problem that is not
            rejected; raises SpecError for a parameter that makes no sense there.
        automatic: whether it is considered if the user names no algorithm.
        plausible: a cheap test whether it may be the fastest; otherwise it is not costed.
        unlikely: why it may not be for a problem, for people.
        choices: choices of its parameters that may be the fastest, the cheapest by estimate first;
            with `lean` also the fastest of those that need less memory. None if `make` is the
            only choice.
        transforms: whether it multiplies transformed numbers, in which small weights are lost.
        precisions: says whether it computes in a precision.
        takes_phases: whether its kernels write the phases of a transposed convolution that are
            channels (`PhasedAccess`).
        takes_halves: whether all its kernels load and store operands as numbers, so that these may
            lie in memory as halves.
        copied_taps: taps of the kernel from which on it copies its input before it multiplies, so
            that a half is converted once and not in each product; None if it never does.
        offered_from: the values of `max_error` from which on it offers more candidates, beside
            those that these state themselves.
    """

    name: str
    parameters: type[P]
    reject: Callable[[Problem, Target], str | None]
    cost: Callable[[Problem, Target], float]
    make: Callable[[Problem, Target, P], Candidate]
    automatic: bool = True
    plausible: Callable[[Problem], bool] = lambda _: True
    unlikely: Callable[[Problem], str] = lambda _: "too few channels or taps to pay"
    choices: Callable[[Problem, Target, bool], list[Choice]] | None = None
    precisions: Callable[[Precision], bool] = is_one_float
    takes_phases: bool = False
    transforms: bool = False
    offered_from: Callable[[Problem], Iterable[float]] = lambda _: ()
    takes_halves: bool = True
    copied_taps: int | None = None

    def refusal(self, problem: Problem, target: Target) -> str | None:
        """Why a problem cannot be computed this way on a target; None if it can."""
        if not self.precisions(problem.conv.precision):
            return f"a precision of {problem.conv.precision}"
        if isinstance(problem.conv.y, PhasedAccess) and not self.takes_phases:
            return "the phases of a transposed convolution as channels"
        return self.reject(problem, target)

    def candidate(
        self, problem: Problem, target: Target, given: Parameters | None = None
    ) -> Candidate:
        """The best candidate with the parameters that are given, if any are."""
        given = self.parameters() if given in (None, Parameters()) else given
        assert isinstance(given, self.parameters)
        return self.make(problem, target, given)


def one_kernel_candidate(
    choice: Choice, problem: Problem, kernel: GroupedConv, details: str = ""
) -> Candidate:
    """The candidate of a kernel that packs its own constants; its operands are its roles."""

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        calls = kernel.changing_weight_calls if problem.weights_change else kernel.weight_calls
        return {"w": calls(problem.weights_3d(w)), **channel_calls(kernel, channels)}

    return Candidate(choice, (KernelUse(kernel, kernel.operands),), packing, details=details)


class PacksChannels(Protocol):
    """A kernel with numbers for each output channel."""

    def channel_calls(self, values: np.ndarray) -> list[PackCall]:
        """Return the calls that pack one or more numbers per channel."""


def channel_calls(
    kernel: PacksChannels, channels: Mapping[str, np.ndarray]
) -> dict[str, list[PackCall]]:
    """Return the calls that pack a kernel's constants other than weights, by role."""
    return {
        name: copied(values) if name == "quantisation" else kernel.channel_calls(values)
        for name, values in channels.items()
    }


_Size = TypeVar("_Size")
_Choice = TypeVar("_Choice")
_GOOD = 1.05  # times the cycles of the best


def good_choices(
    sizes: Iterable[_Size],
    best: Callable[[_Size], _Choice | None],
    cycles: Callable[[_Size, _Choice], float | None],
) -> list[_Choice]:
    """Choices of which one is about as good for each size as its best one.

    Args:
        sizes: the usual ones, in the order in which choices are added for them.
        best: the best choice for a size; None if there is none.
        cycles: estimated, of a choice for a size; None if it cannot be made for it.
    """
    kept: list[_Choice] = []
    for size in sizes:
        own = best(size)
        if own is not None and _least(size, kept, cycles) > _GOOD * _least(size, [own], cycles):
            kept.append(own)
    return kept


def _least(
    size: _Size, choices: list[_Choice], cycles: Callable[[_Size, _Choice], float | None]
) -> float:
    found = (cycles(size, each) for each in choices)
    return min((one for one in found if one is not None), default=math.inf)


def has_halves(precision: Precision) -> bool:
    """Return whether a precision sums in float32 and stores some operands in halves."""
    operands = precision.x, precision.w, precision.y
    stored = all(each in (FLOAT32, *HALVES) for each in operands)
    return precision.accumulate == FLOAT32 and stored and not precision.is_uniform


@cache
def with_halves(algorithm: Algorithm[Any]) -> Algorithm[Any]:
    """A method of float32 for problems whose operands are in halves."""
    transforms, choices = algorithm.transforms, algorithm.choices
    copied = algorithm.copied_taps

    def seen(problem: Problem) -> Problem:
        left = problem.max_error - storage_error(_rounded(problem, transforms))
        wide = with_conv(problem, precision=SINGLE)
        # What transforms weights fast reads float32.
        return replace(wide, max_error=max(0.0, left), weights_change=False)

    def make(problem: Problem, target: Target, given: Parameters) -> Candidate:
        made = algorithm.make(seen(problem), target, given)
        return stored(made, problem, transforms)

    def offered_from(problem: Problem) -> list[float]:
        added = storage_error(_rounded(problem, transforms))
        return [error + added for error in algorithm.offered_from(seen(problem))]

    def slower(problem: Problem, target: Target) -> float:
        """Time over float32's."""
        if transforms:
            return target.costs.halves_transformed
        once = copied is not None and prod(problem.conv.window.kernel) >= copied
        return target.costs.halves_copied if once else target.costs.halves_each

    def cost(problem: Problem, target: Target) -> float:
        return slower(problem, target) * algorithm.cost(seen(problem), target)

    def choices_of(problem: Problem, target: Target, lean: bool) -> list[Choice]:
        assert choices is not None
        factor = slower(problem, target)
        found = choices(seen(problem), target, lean)
        return [replace(choice, cycles=factor * choice.cycles) for choice in found]

    def plausible(problem: Problem) -> bool:
        # A method that copies its input is laid out for one size.
        sized = not problem.any_size or copied is None
        return sized and (copied is not None or algorithm.plausible(seen(problem)))

    return replace(
        algorithm,
        reject=lambda problem, target: algorithm.reject(seen(problem), target),
        cost=cost,
        make=make,
        plausible=plausible,
        choices=choices and choices_of,
        precisions=has_halves,
        automatic=copied is not None or algorithm.automatic,
        offered_from=offered_from,
    )


def _rounded(problem: Problem, transforms: bool) -> Precision:
    """The types to which weights and results are rounded: transformed weights stay in float32.

    The result of a gradient of weights has their type, and no weights are read.
    """
    precision = problem.conv.precision
    if problem.propagation == Propagation.WEIGHTS:
        return replace(precision, w=FLOAT32, y=precision.w)
    return replace(precision, w=FLOAT32) if transforms else precision


def stored(candidate: Candidate, problem: Problem, transforms: bool) -> Candidate:
    """A candidate of the problem in float32, with its operands stored as a precision says.

    Args:
        candidate: that computes in float32.
        problem: in whose precision they are.
        transforms: whether it transforms weights.
    """
    precision, types = problem.conv.precision, _rounded(problem, transforms)
    halves = halves_of(precision, types.w)
    uses = tuple(use_of_halves(use, halves) for use in candidate.kernels)
    choice = replace(candidate.choice, error=candidate.choice.error + storage_error(types))

    def packing(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, list[PackCall]]:
        wide = w if w.dtype == FLOAT32 else np.empty(w.shape, FLOAT32)
        calls = candidate.packing(wide, channels)
        if wide is not w:
            given = np.ascontiguousarray(w)
            for role, each in calls.items():
                if np.may_share_memory(each[0].source(), wide):
                    calls[role] = calls_on_halves(each, wide, given, str(precision.w))
        if types.w in HALVES:
            calls["w"] = halved_calls(calls["w"], str(types.w))
        return calls

    return replace(candidate, choice=choice, kernels=uses, packing=packing)


def halves_of(precision: Precision, packed: DType) -> dict[str, str]:
    """The half precisions of the roles that have one.

    Args:
        precision: of the operands; a gradient has the type of what it is the gradient of.
        packed: type of the packed weights.
    """
    x, w, y = precision.x, precision.w, precision.y
    roles = {"x": x, "w": packed, "residual": y, "y": y, "dy": y, "dw": w, "db": w}
    return {role: str(dtype) for role, dtype in roles.items() if dtype in HALVES}


def use_of_halves(use: KernelUse, halves: Mapping[str, str]) -> KernelUse:
    """A kernel that reads and writes halves in some roles."""
    return replace(use, kernel=half_stored(use.kernel, tuple(halves.get(r, "") for r in use.roles)))
