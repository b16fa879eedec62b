"""What a served model takes and gives, as its metadata says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leanconv.api.inputs import InputSpec
from leanconv.errors import UnsupportedError
from leanconv.server.datatypes import NAMES


def checked(specs: Sequence[InputSpec]) -> Sequence[InputSpec]:
    """Inputs or outputs whose types the protocol has.

    Raises:
        UnsupportedError: it lacks one.
    """
    for spec in specs:
        if spec.dtype not in NAMES:
            raise UnsupportedError(
                f"{spec.name!r} is of {spec.dtype}, which the Open Inference Protocol lacks; "
                f"expected one of {', '.join(NAMES)}: add a Cast to the file"
            )
    return specs


def described(specs: Sequence[InputSpec]) -> list[dict[str, Any]]:
    """Inputs or outputs as metadata: extents that are open are -1, an open rank is [-1]."""
    return [
        {
            "name": spec.name,
            "datatype": NAMES[spec.dtype],
            "shape": [-1]
            if spec.shape is None
            else [e if isinstance(e, int) else -1 for e in spec.shape],
        }
        for spec in specs
    ]
