"""What an operation becomes: launches over named buffers, constants and temporaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from leanconv.gpu.launch import Launch
from leanconv.records import dataclass


@dataclass(frozen=True, eq=False)
class Lowered:
    """The launches of one operation, run one after the other.

    Attributes:
        launches: in order.
        constants: packed weights and tables by the names that the launches use.
        temporaries: bytes of each intermediate buffer that the launches name.
        algorithm: what is shown to the user.
        arithmetic: how products are made; empty where there are none.
        parameters: tiles and the like, for people.
        error: expected relative error in the max norm, for data of random sign.
        estimate_s: expected time on the machine that it was lowered for, in seconds.
        alias: instead of launches, the name of the input whose bytes are the output's already.
    """

    launches: tuple[Launch, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    temporaries: Mapping[str, int] = field(default_factory=dict)
    algorithm: str = ""
    arithmetic: str = ""
    parameters: str = ""
    error: float = 0.0
    estimate_s: float = 0.0
    alias: str = ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all constants."""
        return sum(array.nbytes for array in self.constants.values())

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
