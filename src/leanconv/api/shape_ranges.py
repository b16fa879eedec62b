"""Ranges of input shapes that `load(…, shapes=…)` states: `{"x": (1, 3, 48, (32, 2304))}`.

Where the value of an input decides what is computed, that stands for its shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec, Known, Shape, validated_input
from leanconv.errors import InputError, short
from leanconv.graph.ops.base import MAX_TENSOR_BYTES
from leanconv.graph.small_inputs import is_small
from leanconv.records import dataclass
from leanconv.spec.arguments import numbers_of
from leanconv.units import shape_text

MOST_SHAPES = 20_000  # that are looked at one by one
_MOST_EXTENT = MAX_TENSOR_BYTES  # no tensor is longer
_VALUES = (int, np.generic, np.ndarray)
_FORM = "a number, (least, most) or (least, most, step)"


@dataclass(frozen=True)
class ShapeRanges:
    """The shapes that a network is loaded for.

    Attributes:
        inputs: their names.
        axes: for each input its extents' ranges.
        names: for each input what its axes are called: those of one name have one extent.
        values: of small inputs.
    """

    inputs: tuple[str, ...]
    axes: tuple[tuple[range, ...], ...]
    names: tuple[tuple[object, ...], ...]
    values: Known

    @staticmethod
    def of(shapes: Mapping[str, Any], inputs: Sequence[InputSpec]) -> ShapeRanges:
        """Check what the user gave.

        Args:
            shapes: by input, for each axis a number, (least, most), or (least, most, step); or a
                small input's value.
            inputs: what the file declares.

        Raises:
            InputError: inputs or axes are missing, or do not fit the file.
        """
        if not isinstance(shapes, Mapping):
            raise InputError(
                f"shapes is {type(shapes).__name__}; expected a dictionary by the inputs' names, "
                'such as {"x": (1, 3, 48, (32, 2304))}, or the shape of the only input'
            )
        declared = {spec.name: spec for spec in inputs}
        if unknown := [name for name in shapes if name not in declared]:
            raise InputError(
                f"shapes names {short(unknown[0])}; expected the network's inputs, "
                f"{', '.join(declared)}"
            )
        axes, names, values = [], [], {}
        for name, spec in declared.items():
            given = shapes.get(name, spec.shape)
            if isinstance(given, _VALUES) and is_small(spec.shape, spec.dtype):
                values[name] = np.array(validated_input(given, spec))  # type: ignore[arg-type]
                given = values[name].shape
            axes.append(_axes(name, spec, given))
            own = spec.shape or (None,) * len(axes[-1])
            names.append(
                tuple(n if isinstance(n, str) else (name, axis) for axis, n in enumerate(own))
            )
        found = ShapeRanges(tuple(declared), tuple(axes), tuple(names), values)
        found._check()
        return found

    def _check(self) -> None:
        stated: dict[object, range] = {}
        for names, axes in zip(self.names, self.axes, strict=True):
            for name, extents in zip(names, axes, strict=True):
                if stated.setdefault(name, extents) != extents:
                    raise InputError(
                        f"the axis {name!r} is {_text(stated[name])} of one input and "
                        f"{_text(extents)} of another; expected the same range"
                    )
        if self.count > MOST_SHAPES:
            raise InputError(
                f"shapes states {self.count} shapes; expected at most {MOST_SHAPES}: give steps, "
                "as (32, 960, 32), or leave shapes out"
            )

    @property
    def _ranges(self) -> dict[object, range]:
        pairs = zip(self.names, self.axes, strict=True)
        return {name: n for names, axes in pairs for name, n in zip(names, axes, strict=True)}

    @property
    def count(self) -> int:
        """How many shapes there are."""
        return prod(map(len, self._ranges.values()))

    def __str__(self) -> str:
        pairs = zip(self.inputs, self.axes, strict=True)
        return ", ".join(
            f"{name} = {self.values[name].tolist()}"
            if name in self.values
            else f"{name} {'x'.join(map(_text, axes))}"
            for name, axes in pairs
        )

    def __iter__(self) -> Iterator[tuple[Shape, ...]]:
        """All of them, the largest first."""
        ranges = self._ranges
        for extents in product(*(reversed(extents) for extents in ranges.values())):
            known = dict(zip(ranges, extents, strict=True))
            yield tuple(tuple(known[name] for name in names) for names in self.names)

    @property
    def ends(self) -> list[tuple[Shape, ...]]:
        """The largest and the smallest."""
        pairs = [tuple(tuple(axis[end] for axis in axes) for axes in self.axes) for end in (-1, 0)]
        return list(dict.fromkeys(pairs))

    def text_of(self, shapes: Sequence[Shape]) -> str:
        """Shapes of the inputs as messages have them."""
        pairs = zip(self.inputs, shapes, strict=True)
        return ", ".join(f"{name} {shape_text(shape)}" for name, shape in pairs)

    def check(self, shapes: Sequence[Shape], known: Known) -> None:
        """Refuse what is not among them.

        Args:
            shapes: of all inputs.
            known: values of those that decide what is computed.

        Raises:
            InputError: says which range the network was loaded for.
        """
        for name, value in self.values.items():
            if name in known and not np.array_equal(known[name], value):
                raise InputError(
                    f"input {name!r} is {short(known[name].tolist())}; expected "
                    f"{value.tolist()}, for which the network was loaded: load it for the other "
                    "value, too, or without shapes"
                )
        for name, axes, shape in zip(self.inputs, self.axes, shapes, strict=True):
            fits = len(axes) == len(shape)
            if not fits or any(n not in axis for n, axis in zip(shape, axes, strict=True)):
                raise InputError(
                    f"input {name!r} has the shape {shape_text(shape)}; expected "
                    f"{'x'.join(map(_text, axes))}, for which the network was loaded: give another "
                    "range to load(…, shapes=…), or none"
                )


def _axes(name: str, spec: InputSpec, given: Any) -> tuple[range, ...]:
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(
            f"shapes of {name!r} is {short(given)}; expected one extent for each axis, {_FORM}"
        )
    if spec.shape is not None and len(given) != len(spec.shape):
        raise InputError(
            f"shapes gives {len(given)} axes for {name!r}; expected {len(spec.shape)}: {spec}"
        )
    return tuple(_axis(name, number, extent) for number, extent in enumerate(given))


def _axis(name: str, number: int, given: Any) -> range:
    parts = () if _holds_bool(given) else numbers_of(given, 2)
    least, most, step = (*parts, 1)[:3] if len(parts) in (2, 3) else (-1, -1, 1)
    if least < 0 or step < 1 or max(parts) > _MOST_EXTENT:
        what = "is open in the file" if isinstance(given, str) or given is None else short(given)
        raise InputError(
            f"axis {number} of {name!r} in shapes: got {what}; expected {_FORM}, extents "
            f"of at least 0 and at most {_MOST_EXTENT}"
        )
    if least > most or (most - least) % step:
        raise InputError(
            f"axis {number} of {name!r} in shapes: got {parts}; expected the least extent "
            "first, and the last one a number of steps after it"
        )
    return range(least, most + 1, step)


def _holds_bool(given: object) -> bool:
    return isinstance(given, tuple | list) and any(isinstance(n, bool) for n in given)


def _text(axis: range) -> str:
    if len(axis) == 1:
        return str(axis[0])
    return f"[{axis[0]}…{axis[-1]}{f' in steps of {axis.step}' if axis.step > 1 else ''}]"
