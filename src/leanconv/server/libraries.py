"""Compiled libraries as models of a server: `Plans` takes them for networks planned already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.inputs import Known, Shape, validated_input
from leanconv.api.open_library import Library
from leanconv.errors import InputError
from leanconv.graph.ir import TensorType
from leanconv.graph.network_inputs import Deciding
from leanconv.records import dataclass
from leanconv.runtime.memory import Held
from leanconv.server.limits import NOT_FOUND, RefusedError
from leanconv.types import as_dtype


@dataclass(frozen=True)
class LibraryPlan:
    """What a library does for one set of shapes, as a server asks compiled networks for it.

    Attributes:
        library: opened.
        held: the bytes of its memory and file.
        inputs, outputs: their types by name.
    """

    library: Library
    held: Held
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType | None]

    def is_for(self, shapes: tuple[Shape, ...], known: Known) -> bool:
        """Return whether it is for these shapes."""
        return shapes == tuple(kind.shape for kind in self.inputs.values())

    def run(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Return all outputs for arrays that were validated."""
        return self.library.computed(arrays)

    def report(self, front: bool) -> dict[str, Any]:
        """Refuse to say which candidates there were: nobody has looked for any."""
        raise RefusedError(NOT_FOUND, "a compiled library has no page of its plan")


class LibraryNetwork:
    """A library in place of a network, and of the backend that would plan it.

    Args:
        library: opened.
        path: of its file, which counts as its weights and code.

    Attributes:
        inputs, outputs: of the library.
        deciding: no input's value decides what is computed.
        plans: for each set of shapes.
    """

    deciding = Deciding()

    def __init__(self, library: Library, path: Path) -> None:
        self.inputs, self.outputs = library.inputs, library.outputs
        facts = library.facts
        beside = facts["weight_bytes"] if facts["weights_file"] else 0
        held = Held(0, {id(library): facts["block_bytes"] + path.stat().st_size + beside})
        self.plans = [
            LibraryPlan(library, held, _types(run["inputs"]), {**_types(run["outputs"])})
            for run in facts["runs"]
        ]
        self.compiler, self.whole, self.in_use = self, self, self.plans[0]

    def limit_to(self, memory_limit: int) -> None:
        """Do nothing: a library takes what it takes, which is counted when it is opened."""

    def validated(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Return arrays as the library reads them."""
        return [validated_input(a, spec) for a, spec in zip(arrays, self.inputs, strict=True)]

    def compile(self, shapes: tuple[Shape, ...], known: Known) -> LibraryPlan:
        """Return the plan of shapes.

        Raises:
            InputError: the library is for others.
        """
        for each in self.plans:
            if each.is_for(shapes, known):
                return each
        had = [[list(kind.shape) for kind in each.inputs.values()] for each in self.plans]
        raise InputError(
            f"got the shapes {list(map(list, shapes))}; expected {' or '.join(map(str, had))}"
        )


def _types(described: Sequence[Mapping[str, Any]]) -> dict[str, TensorType]:
    return {e["name"]: TensorType(tuple(e["shape"]), as_dtype(e["dtype"])) for e in described}
