"""A convolution with the places of its operands: what every algorithm is asked about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

import numpy as np

from leanconv.codegen.epilogue import Epilogue
from leanconv.codegen.geometry import Access, Window, triple
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.types import ROUNDOFF
from leanconv.spec import ConvSpec
from leanconv.spec.format import ALIGNMENT, aligned
from leanconv.target import Target

# Cycles of a line of a tensor in planes that does not stay in the second cache: a walk along the
# channels takes a line of another page at every step, which no processor asks for ahead. Of few
# planes the pages are known and the rows are asked for, if their lines do not share a set of the
# first cache, and if there is enough of the third one.
_LINE_CYCLES, _FEW_PLANES_CYCLES = 20.0, 5.0
_FEW_PLANES, _WAYS, _PAGE, _L3_SHARE = 64, 8, 4096, 1 / 3
# The error accepted of one layer if the user does not say.
DEFAULT_ERROR = {"float32": 2e-5, "float64": 2e-5 * 2.0**-29}

_COLD_BYTES = 6.0  # that memory gives one core in a cycle

# Transformed weights of one layer may take so many bytes, and so many times the weights given, if
# the user does not ask for an algorithm: 43 times is what FFT tiles of 16 take for a 3x3 kernel.
_WEIGHTS_BYTES, _WEIGHTS_FACTOR = 64 * 2**20, 4


@dataclass(frozen=True)
class Problem:
    """One convolution to be lowered.

    Attributes:
        spec: sizes and epilogue; its layout is not used.
        x, y: where input and output (and residual) lie.
        window: the sliding window; that of the spec unless said otherwise.
        y_offset: elements from the output's start to the first one written.
        max_error: the largest relative error, in the max norm, that is accepted.
        x_offset: elements from the input's start to the part of it that is convolved.
        cold: whether the weights come from memory in each run, as in large networks.
    """

    spec: ConvSpec
    x: Access
    y: Access
    window: Window
    y_offset: int = 0
    max_error: float = 1.0
    x_offset: int = 0
    cold: bool = False

    @staticmethod
    def of(spec: ConvSpec, x: Access, y: Access, max_error: float | None = None) -> Problem:
        """The problem of a spec as it stands; `DEFAULT_ERROR` where no error is given."""
        window = Window(
            triple(spec.size, 1),
            triple(spec.output_size, 1),
            triple(spec.kernel, 1),
            triple(spec.stride, 1),
            triple(spec.dilation, 1),
            triple(spec.pad_begin, 0),
        )
        limit = DEFAULT_ERROR[spec.dtype] if max_error is None else max_error
        return Problem(spec, x, y, window, max_error=limit)

    def alone(self) -> Problem:
        """The same for one image of the batch."""
        return replace(self, spec=replace(self.spec, batch=1))

    @property
    def epilogue(self) -> Epilogue:
        """What happens to the sums."""
        return Epilogue(self.spec.bias, self.spec.residual, self.spec.activation)

    @property
    def group_inputs(self) -> int:
        """Input channels of one group."""
        return self.spec.in_channels // self.spec.groups

    @property
    def group_outputs(self) -> int:
        """Output channels of one group."""
        return self.spec.out_channels // self.spec.groups

    def weights_3d(self, w: np.ndarray) -> np.ndarray:
        """View weights (K, C/g, kernel…) with all three kernel axes."""
        return w.reshape(*w.shape[:2], *self.window.kernel)


@dataclass(frozen=True)
class Piece:
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
        pieces: kernels, run one after the other.
        pack: packs (weights, {"bias": …, "slope": …}) into constants by role.
        error: expected relative error in the max norm, for data of random sign.
        temporaries: bytes of each buffer between the pieces.
        parameters: what was chosen, for people: `"tile 14x2"`.
        weight_bytes: of transformed weights, where they are larger than the weights given.
        arithmetic: the algorithm and those parameters that decide in which order is summed, as the
            user would select them: `"winograd:m=4x4"`; the algorithm alone where none does.
        stream: packs like `pack`, in small pieces: (role, array), those of a role one after the
            other; None where there is only the whole.
    """

    algorithm: str
    pieces: tuple[Piece, ...]
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
        return aligned(max(piece.kernel.scratch_bytes for piece in self.pieces))

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
    pieces = (Piece(kernel, kernel.operands),)
    return Candidate(algorithm, pieces, pack, error, {}, parameters, arithmetic)


def plane_cycles(problem: Problem, target: Target, line: float | None = None) -> float:
    """Cycles of bringing input and output through the caches where they stand in planes.

    Args:
        problem: what is computed. Tensors whose channels are neighbours cost nothing here: the
            processor asks for their lines ahead.
        target: the machine.
        line: cycles of one line; those of a walk along the channels if None.

    Returns:
        0.0 where both together stay in the second cache, little where they nearly do.
    """
    spec = problem.spec
    tensors = (
        (problem.x, problem.group_inputs, spec.itemsize * prod(spec.input_shape)),
        (problem.y, problem.group_outputs, spec.itemsize * prod(spec.output_shape)),
    )
    everything = sum(size for _, _, size in tensors)
    large = everything > _L3_SHARE * target.l3_bytes
    cycles = 0.0
    for access, planes, size in tensors:
        if not access.lanes_contiguous:
            apart = access.block_stride * spec.itemsize
            near = planes <= _FEW_PLANES and (apart % _PAGE or planes <= _WAYS) and not large
            walk = _FEW_PLANES_CYCLES if near else _LINE_CYCLES
            cycles += (walk if line is None else line) * size / ALIGNMENT
    return cycles * max(0.0, 1 - target.l2_bytes / everything)


def cold_cycles(problem: Problem, weight_bytes: float) -> float:
    """Cycles of one core to bring weights from memory; none where a cache holds them."""
    return weight_bytes / _COLD_BYTES if problem.cold else 0.0


def most_weight_bytes(problem: Problem) -> int:
    """The most bytes that transformed weights may take unasked."""
    return _WEIGHTS_BYTES + _WEIGHTS_FACTOR * problem.spec.weight_bytes


def products(problem: Problem) -> int:
    """The most products that any output is the sum of, those with padding left out."""
    window = problem.window
    return problem.group_inputs * prod(window.most_taps(axis) for axis in range(3))


def sum_error(problem: Problem) -> float:
    """Expected error of a plain sum of products, added up one after the other."""
    return walk_error(problem, products(problem))


def walk_error(problem: Problem, length: float) -> float:
    """Expected error of sums that round like sequential ones of that many products.

    Each addition errs by up to a roundoff of the sum so far, so the error is a random walk whose
    steps grow with the root of their number: 0.3 sqrt(L) roundoffs in the root mean square, over
    that of the sums. The largest error over the largest sum has a wide distribution, as few sums
    have both: of 400,000 sums of 9, 100 and 400 products (normal, uniform, all positive), alone and
    in tensors, 1 in 100,000 was above 1 + sqrt(L) roundoffs and none above 1 + 1.3 sqrt(L).
    """
    spec = problem.spec
    terms = length + spec.bias + spec.residual
    return ROUNDOFF[spec.dtype] * (1.0 + 1.5 * math.sqrt(terms))
