"""How a network is called: with arrays, or shapes, by the names of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

from leanconv.errors import InputError


@dataclass(frozen=True)
class Names:
    """The names of a network's inputs and outputs, in their order.

    Attributes:
        inputs, outputs: as the file has them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def check_single(self) -> None:
        """Check that the network takes one array and gives one.

        Raises:
            InputError: it has more inputs or outputs.
        """
        if len(self.inputs) != 1 or len(self.outputs) != 1:
            raise InputError(
                f"the network has inputs {', '.join(self.inputs)} and outputs "
                f"{', '.join(self.outputs)}; expected one of each; call net.run({{name: array}})"
            )

    def ordered(self, inputs: Mapping[str, Any]) -> list[Any]:
        """What is given for each input, in their order.

        Raises:
            InputError: an input is missing or unknown, or nothing is given by name.
        """
        if type(inputs) is dict and len(inputs) == len(self.inputs):  # the short way
            found = [inputs[name] for name in self.inputs if name in inputs]
            if len(found) == len(inputs):
                return found
        if not isinstance(inputs, Mapping):
            raise InputError(
                f"inputs is {type(inputs).__name__}; expected a dictionary with "
                f"{', '.join(self.inputs)}; call net(x) with a single array"
            )
        if set(inputs) != set(self.inputs):
            got = sorted(map(str, inputs))
            raise InputError(f"got inputs {got}; expected {sorted(self.inputs)}")
        return [inputs[name] for name in self.inputs]

    def arrays(self, x: Any) -> list[Any]:
        """All inputs by name, or the only one by itself.

        Raises:
            InputError: one is missing or unknown, or the network takes several.
        """
        if isinstance(x, Mapping):
            return self.ordered(x)
        if len(self.inputs) != 1:
            raise InputError(f"got one array; expected {', '.join(self.inputs)}, by name")
        return [x]

    def shapes(
        self, shapes: Mapping[str, Sequence[int]] | Sequence[int]
    ) -> tuple[tuple[int, ...], ...]:
        """The shape of each input, given by name or as that of the only one.

        Raises:
            InputError: a shape is missing or holds something other than integers.
        """
        if not isinstance(shapes, Mapping):
            shapes = dict.fromkeys(self.inputs[:1], shapes)
        given = self.ordered(shapes)
        try:
            return tuple(tuple(index(extent) for extent in shape) for shape in given)
        except TypeError:
            raise InputError(
                f"got the shapes {given}; expected integers such as (1, 3, 224, 224)"
            ) from None
