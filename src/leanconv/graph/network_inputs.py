"""Arguments of a network's call: arrays or shapes by names of its inputs, and which values decide.

Values of small inputs may decide what a network computes: a sampling rate, a size, a shape. A
branch, or a shape, that follows from them and from constants alone is known when the network is
bound to their values. Which inputs these are is found by binding without any values: what is needed
is named by a `NeedsInputsError`. They are others for other shapes, and beside other values: what is
not computed there needs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import index
from typing import Any, TypeVar

import numpy as np

from leanconv.errors import InputError, short
from leanconv.records import dataclass
from leanconv.symbolic import plain
from leanconv.types import DType

MOST = 16  # elements: each combination of values has a plan of its own
_MOST_KEPT = 4096  # combinations of shapes and values whose deciding inputs are remembered
_Made = TypeVar("_Made")
_Values = Mapping[str, np.ndarray]
_Key = tuple[object, ...]


def meant(name: object, known: Sequence[str]) -> str:
    """Return the end of a message about an unknown name: the known name most like it."""
    from difflib import get_close_matches

    close = get_close_matches(str(name), known, 1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _got(value: object) -> str:
    """Return a value of the wrong kind as text; of arrays the type alone."""
    return short(value) if isinstance(value, str | int | None) else type(value).__name__


@dataclass(frozen=True)
class Names:
    """The names of a network's inputs and outputs, in their order.

    Attributes:
        inputs, outputs: as the file has them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def called(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        """Return the array for each input, in their order, from a call of a network of one output.

        Args:
            arrays: for the first inputs.
            named: for the others, by name.

        Raises:
            InputError: an input is missing, unknown or given twice, or there are more outputs.
        """
        if len(self.outputs) != 1:
            raise InputError(
                f"the network has the outputs {', '.join(self.outputs)}; expected one; "
                "call net.run({name: array}), which gives all by name"
            )
        if any(isinstance(array, Mapping) for array in arrays):
            raise InputError(
                "got a dictionary; expected arrays; call net.run({name: array}) with inputs by name"
            )
        if len(arrays) == len(self.inputs) and not named:
            return list(arrays)
        if len(arrays) > len(self.inputs) or not (arrays or named):
            raise InputError(
                f"got {len(arrays)} arrays; expected {len(self.inputs)}: {', '.join(self.inputs)}"
            )
        given = dict(zip(self.inputs, arrays, strict=False))
        twice = sorted(given.keys() & named.keys())
        if twice:
            raise InputError(
                f"input {twice[0]!r} is given by its place and by its name; expected it once"
            )
        return self.ordered({**given, **named})

    def selected(self, names: Any) -> list[int]:
        """The numbers of the outputs requested by name: all where that is None or empty.

        Raises:
            InputError: a name is unknown, or names are not in a list.
        """
        if names is None:
            return list(range(len(self.outputs)))
        if isinstance(names, str | Mapping) or not isinstance(names, Iterable):
            raise InputError(
                f"output_names is {_got(names)}; expected None for all, or a list such as "
                f"[{self.outputs[0]!r}], and the inputs after it"
            )
        listed = list(names)
        for name in listed:
            if not isinstance(name, str) or name not in self.outputs:
                raise InputError(
                    f"got the output name {_got(name)}; expected some of "
                    f"{', '.join(self.outputs)}{meant(name, self.outputs)}"
                )
        return [self.outputs.index(name) for name in listed or self.outputs]

    def ordered(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return the array for each input, in their order.

        Raises:
            InputError: an input is missing or unknown, or nothing is given by name.
        """
        if type(inputs) is dict and len(inputs) == len(self.inputs):  # the fast path
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
            unknown = [name for name in inputs if name not in self.inputs]
            near = "".join(meant(name, self.inputs) for name in unknown[:1])
            raise InputError(f"got inputs {got}; expected {sorted(self.inputs)}{near}")
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
            shown = ", ".join(map(short, given))
            raise InputError(
                f"got the shapes {shown}; expected integers such as (1, 3, 224, 224) or x.shape"
            ) from None


class NeedsInputsError(InputError):
    """A network cannot be bound without the values of some inputs.

    Attributes:
        names: of these inputs.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = tuple(sorted(names))
        listed = ", ".join(map(repr, self.names))
        super().__init__(
            f"what is computed follows from the value of {listed}; expected it where others have "
            f"a shape: {{{self.names[0]!r}: np.array(…)}}"
        )


class Deciding:
    """The inputs whose values decide what is computed, for each combination of shapes.

    Where such a value is known, further ones may decide: they are found one after the other, and
    follow from the shapes and from the values before them alone, whatever else was planned.
    """

    def __init__(self) -> None:
        self._names: dict[_Key, tuple[str, ...]] = {}

    def among(self, shapes: object, known: _Values) -> _Values:
        """The values that decide for the shapes of all inputs, as far as that was found."""
        return self._chosen(shapes, known)[1]

    def key(self, shapes: object, known: _Values) -> _Key:
        """Return a key of the plan for shapes and values: of `among` them."""
        return self._chosen(shapes, known)[0]

    def _chosen(self, shapes: object, known: _Values) -> tuple[_Key, _Values]:
        key: _Key = (shapes,)
        chosen: dict[str, np.ndarray] = {}
        while self._names:
            names = self._names.get(key)
            if names is None or not all(name in known for name in names):
                break
            for name in names:
                chosen[name] = known[name]
                key += ((name, known[name].tobytes()),)
        return key, chosen

    def found(self, shapes: object, known: _Values, make: Callable[[_Values], _Made]) -> _Made:
        """Call `make` with those known values that decide for shapes; more if it needs others.

        Raises:
            NeedsInputsError: the values of others decide.
        """
        while True:
            key, chosen = self._chosen(shapes, known)
            try:
                return make(chosen)
            except NeedsInputsError as error:
                if not chosen.keys().isdisjoint(error.names):
                    raise  # it would be asked for without end
                if len(self._names) >= _MOST_KEPT:
                    self._names.clear()
                self._names[key] = error.names
                if not all(name in known for name in error.names):
                    raise


def is_small(shape: Sequence[object] | None, dtype: DType) -> bool:
    """Return whether an input is a scalar or a short list of integers or bools.

    Args:
        shape: numbers, symbols; names or None for extents that are not known, which may be small.
        dtype: of its elements.
    """
    if shape is None or len(shape) > 1 or dtype.is_float or dtype.held != dtype:
        return False
    return all(not isinstance(number, int) or number <= MOST for number in map(plain, shape))
