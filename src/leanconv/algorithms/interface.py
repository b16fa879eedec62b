"""What a method offers: the algorithm, its choices, and the candidate that is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from leanconv.algorithms.problem import Problem
from leanconv.codegen.kernel import Kernel
from leanconv.spec.format import aligned
from leanconv.target import Target


@dataclass(frozen=True)
class KernelUse:
    """One kernel of a candidate, with the role of each of its operands.

    A role is `"x"`, `"y"`, `"residual"`, a constant that `Candidate.pack` returns, or one of
    `Candidate.temporaries`; the last one is what the kernel writes.
    """

    kernel: Kernel
    roles: tuple[str, ...]


Pack = Callable[[np.ndarray, Mapping[str, np.ndarray]], dict[str, np.ndarray]]
Stream = Callable[[np.ndarray, Mapping[str, np.ndarray]], Iterator[tuple[str, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A way to compute a problem.

    Attributes:
        algorithm: its name.
        kernels: run one after the other.
        pack: packs (weights, {"bias": …, "slope": …}) into constants by role.
        error: expected relative error in the max norm, for data of random sign.
        temporaries: bytes of each buffer between the kernels.
        parameters: what was chosen, for people: `"tile 14x2"`.
        weight_bytes: of transformed weights, where they are larger than the weights given.
        arithmetic: the algorithm and those parameters that decide in which order is summed, as the
            user would select them: `"winograd:m=4x4"`; the algorithm alone where none does.
        stream: packs like `pack`, in small pieces: (role, array), those of a role one after the
            other; None where there is only the whole.
    """

    algorithm: str
    kernels: tuple[KernelUse, ...]
    pack: Pack
    error: float
    temporaries: Mapping[str, int] = field(default_factory=dict)
    parameters: str = ""
    arithmetic: str = ""
    weight_bytes: int = 0
    stream: Stream | None = None

    def __post_init__(self) -> None:
        if not self.arithmetic:
            object.__setattr__(self, "arithmetic", self.algorithm)

    @property
    def scratch_bytes(self) -> int:
        """Scratch of one thread."""
        return aligned(max(use.kernel.scratch_bytes for use in self.kernels))

    @property
    def shared_bytes(self) -> int:
        """All temporaries together, each aligned."""
        return sum(aligned(size) for size in self.temporaries.values())

    def workspace_bytes(self, threads: int) -> int:
        """What runs need besides the user's arrays and the packed constants."""
        return self.shared_bytes + self.scratch_bytes * threads


Parameters = Mapping[str, str]


@dataclass(frozen=True)
class Alternative:
    """One choice of an algorithm and its parameters.

    Attributes:
        cycles: estimated cycles of one core.
        name: as the user would select it: `"winograd:m=4x4,rows=7"`.
    """

    cycles: float
    name: str


@dataclass(frozen=True)
class Algorithm:
    """One way of convolving.

    Attributes:
        name: as the user selects it.
        parameters: names of the parameters that may go with it, such as `m` in `winograd:m=4`.
        reject: says why a problem cannot be computed this way on a target, None if it can.
        cost: estimated cycles of one core for a problem that is not rejected.
        candidate: the best choice of its parameters, those that are given fixed, for a problem
            that is not rejected; raises SpecError for a parameter that makes no sense.
        automatic: whether it is considered when the user does not ask for an algorithm.
        worth_asking: says cheaply whether it may be the best; its cost is not asked for otherwise.
        alternatives: choices of its parameters that may be the fastest, the cheapest by estimate
            first, and if asked the fastest of those that take less memory; None if there is only
            the one that it makes itself.
    """

    name: str
    parameters: tuple[str, ...]
    reject: Callable[[Problem, Target], str | None]
    cost: Callable[[Problem, Target], float]
    candidate: Callable[[Problem, Target, Parameters], Candidate]
    automatic: bool = True
    worth_asking: Callable[[Problem], bool] = lambda _: True
    alternatives: Callable[[Problem, Target, bool], list[Alternative]] | None = None


class PackingKernel(Protocol):
    """A kernel that packs its own constants."""

    def pack_weights(self, w: np.ndarray) -> np.ndarray:
        """Pack weights (K, C/g, kd, kh, kw)."""

    def pack_channels(self, values: np.ndarray) -> np.ndarray:
        """Pack one number for each output channel."""


def packer(problem: Problem, kernel: PackingKernel) -> Pack:
    """The `pack` of a candidate whose one kernel packs weights and channels itself."""

    def pack(w: np.ndarray, channels: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        packed = {name: kernel.pack_channels(values) for name, values in channels.items()}
        return {"w": kernel.pack_weights(problem.weights_3d(w)), **packed}

    return pack


class StreamingKernel(PackingKernel, Protocol):
    """A kernel that packs its weights in consecutive pieces."""

    def weight_pieces(self, w: np.ndarray) -> Iterator[np.ndarray]:
        """The pieces of what `pack_weights` returns."""


def streamer(problem: Problem, kernel: StreamingKernel) -> Stream:
    """The `stream` of a candidate whose one kernel packs weights and channels itself."""

    def stream(
        w: np.ndarray, channels: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[str, np.ndarray]]:
        for piece in kernel.weight_pieces(problem.weights_3d(w)):
            yield "w", piece
        for name, values in channels.items():
            yield name, kernel.pack_channels(values)

    return stream


def single(
    algorithm: str,
    kernel: Kernel,
    pack: Pack,
    error: float,
    parameters: str = "",
    arithmetic: str = "",
) -> Candidate:
    """The candidate of an algorithm that is one kernel, whose operands are its roles."""
    uses = (KernelUse(kernel, kernel.operands),)
    return Candidate(algorithm, uses, pack, error, {}, parameters, arithmetic)
