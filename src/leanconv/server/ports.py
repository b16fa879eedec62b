"""What a served model takes and gives, as its metadata says it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from leanconv.api.inputs import InputSpec
from leanconv.errors import UnsupportedError
from leanconv.server.datatypes import NAMES


def check_types(specs: Iterable[InputSpec]) -> None:
    """Refuse inputs and outputs of a type that the protocol lacks.

    Raises:
        UnsupportedError: naming the input or output.
    """
    for spec in specs:
        if spec.dtype not in NAMES:
            raise UnsupportedError(
                f"{spec.name!r} is of {spec.dtype}, which the Open Inference Protocol lacks; "
                f"expected one of {', '.join(NAMES)}: add a Cast to the file"
            )


def described(specs: Sequence[InputSpec]) -> list[dict[str, Any]]:
    """Inputs or outputs as metadata."""
    return [
        {
            "name": spec.name,
            "datatype": NAMES[spec.dtype],
            "shape": extents(spec),
        }
        for spec in specs
    ]


def extents(spec: InputSpec) -> list[int]:
    """A shape as the protocol has it: -1 for an open extent, [-1] for an open rank."""
    if spec.shape is None:
        return [-1]
    return [extent if isinstance(extent, int) else -1 for extent in spec.shape]
