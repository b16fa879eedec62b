"""Lowered convolutions: launches over named buffers, constants and temporaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from leanconv.errors import BudgetError
from leanconv.gpu.launch import Launch, Pointer
from leanconv.gpu.machine import Arithmetic, Machine
from leanconv.half_arrays import as_float32, in_memory
from leanconv.records import dataclass, field
from leanconv.spec import Activation, ConvSpec
from leanconv.types import BFLOAT16, DType
from leanconv.units import counted, error_text, format_bytes


@dataclass(frozen=True, eq=False)
class Lowered:
    """The launches of one operation, run one after the other.

    Attributes:
        launches: in order.
        constants: packed weights and tables by the names that the launches use.
        temporaries: bytes of each intermediate buffer that the launches name.
        algorithm: its name, for the user.
        arithmetic: how products are made; empty where there are none.
        parameters: tiles and the like, for people.
        error: expected relative error in the max norm, for data of random sign.
        estimate_s: expected time on the machine that it was lowered for, in seconds.
    """

    launches: tuple[Launch, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    temporaries: Mapping[str, int] = field(default_factory=dict)
    algorithm: str = ""
    arithmetic: str = ""
    parameters: str = ""
    error: float = 0.0
    estimate_s: float = 0.0

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all temporaries."""
        return sum(self.temporaries.values())


def joined(parts: Sequence[Lowered], algorithm: str, arithmetic: str, parameters: str) -> Lowered:
    """Several parts run one after the other, described by the last three."""
    return Lowered(
        tuple(launch for part in parts for launch in part.launches),
        {k: v for part in parts for k, v in part.constants.items()},
        {k: v for part in parts for k, v in part.temporaries.items()},
        algorithm,
        arithmetic,
        parameters,
        max(part.error for part in parts),
        sum(part.estimate_s for part in parts),
    )


def stored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """An array as the device keeps it; bfloat16 as uint16, rounded to nearest even."""
    given = array if dtype == BFLOAT16 else np.ascontiguousarray(array, dtype)
    return np.ascontiguousarray(in_memory(given, dtype))


def unstored(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Return an array from `stored` as NumPy can compute with it: bfloat16 as float32."""
    return as_float32(np.ascontiguousarray(array), dtype) if dtype == BFLOAT16 else array


@dataclass(frozen=True)
class Epilogue:
    """The operations on sums before they are stored, with the names of their buffers."""

    bias: str = ""
    residual: str = ""
    slope: str = ""
    activation: Activation | None = None

    def buffers(self, dtype: DType) -> dict[str, Pointer]:
        """The kernel's arguments that are buffers of this epilogue."""
        names = {"bias": self.bias, "residual": self.residual, "slope": self.slope}
        return {role: Pointer(name, dtype) for role, name in names.items()}

    def numbers(self) -> dict[str, float]:
        """The kernel's arguments that are the activation's numbers."""
        given = self.activation.parameters if self.activation else ()
        first, second = (*given, 0.0, 0.0)[:2]
        return {"a0": first, "a1": second}

    def constants(self) -> dict[str, bool | str]:
        """The kernel's constants for this epilogue."""
        return {
            "HAS_BIAS": bool(self.bias),
            "HAS_RESIDUAL": bool(self.residual),
            "ACT": self.activation.kind if self.activation else "",
        }


@dataclass(frozen=True)
class ConvProblem:
    """A convolution over channels-last buffers.

    Attributes:
        spec: with two spatial axes, or three.
        dtype: of all buffers, NumPy's name or bfloat16.
        arithmetics: those allowed.
        x, y: names of buffers.
        epilogue: operations on the sums, with their buffers' names.
        name: prefix of the buffers that are made.
        lean: whether to take what needs least memory, not what is fastest.
    """

    spec: ConvSpec
    dtype: DType
    arithmetics: tuple[Arithmetic, ...]
    x: str
    y: str
    epilogue: Epilogue
    name: str
    lean: bool = False


T = TypeVar("T")


def check_error(subject: str, predicted: float, limit: float | None) -> None:
    """Refuse a convolution whose error is expected to exceed a limit; None is no limit.

    Raises:
        BudgetError: the error is above the limit.
    """
    if limit is not None and not predicted <= limit:
        raise BudgetError(
            f"{subject} is expected to err by {predicted:.3g}, the limit is {limit:.3g}; give "
            f"max_error={error_text(predicted)} or more, or float64 arrays",
            0,
            predicted,
        )


def fastest_within(
    lower: Callable[[bool], T],
    needed_bytes: Callable[[T], int],
    limit: int | None,
    subject: str,
    machine: Machine,
) -> T:
    """Lower for speed or, where that takes more than the limit, for least memory.

    Args:
        lower: given whether to take what needs least memory.
        needed_bytes: gives the bytes of a result of `lower`.
        limit: bytes, None for no limit.
        subject, machine: for the message.

    Raises:
        BudgetError: neither keeps the limit.
    """
    needed = []
    for lean in (False, True):
        lowered = lower(lean)
        needed.append(needed_bytes(lowered))
        if limit is None or needed[-1] <= limit:
            return lowered
    least = min(needed)
    raise BudgetError(
        f"{subject} needs {least} bytes ({format_bytes(least)}) at least on {machine.name}, the "
        f"limit is {counted(limit or 0, 'byte')}; give memory_limit={least} or more",
        least,
    )
