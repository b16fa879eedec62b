"""A model for shapes that the user states, whatever its file declares.

Numbers are fixed, so that the network is planned as one whose file fixes them; ranges are open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec, Known, Shape, validated_input
from leanconv.errors import InputError, LeanConvError, ModelError, short
from leanconv.graph.network_inputs import is_small
from leanconv.graph.onnx_file import ModelInput
from leanconv.graph.onnx_import import Model
from leanconv.graph.ops.base import MAX_TENSOR_BYTES
from leanconv.records import dataclass, replace
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
        """Check the shapes that a user stated.

        Args:
            shapes: by input, for each axis a number, (least, most), or (least, most, step); or a
                small input's value.
            inputs: as the file declares them.

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
        """Return the number of shapes."""
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
        """Yield all shapes, the largest first."""
        ranges = self._ranges
        for extents in product(*(reversed(extents) for extents in ranges.values())):
            known = dict(zip(ranges, extents, strict=True))
            yield tuple(tuple(known[name] for name in names) for names in self.names)

    @property
    def ends(self) -> list[tuple[Shape, ...]]:
        """The largest and the smallest shape."""
        pairs = [tuple(tuple(axis[end] for axis in axes) for axes in self.axes) for end in (-1, 0)]
        return list(dict.fromkeys(pairs))

    def text_of(self, shapes: Sequence[Shape]) -> str:
        """Shapes of the inputs as messages have them."""
        pairs = zip(self.inputs, shapes, strict=True)
        return ", ".join(f"{name} {shape_text(shape)}" for name, shape in pairs)

    def check(self, shapes: Sequence[Shape], known: Known) -> None:
        """Refuse shapes that are not among these.

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


def are_numbers(shapes: Any) -> bool:
    """Return whether shapes, as `with_shapes` takes them, are numbers: no ranges, no values."""
    given = shapes.values() if isinstance(shapes, Mapping) else (_listed(shapes),)
    return all(
        isinstance(each, Sequence) and len(numbers_of(each, 0)) == len(each) for each in given
    )


def _listed(shape: Any) -> Any:
    """A list in place of an array of one axis, which may be the shape of the only input."""
    return shape.tolist() if isinstance(shape, np.ndarray) and shape.ndim == 1 else shape


def with_shapes(model: Model, shapes: Any) -> tuple[Model, ShapeRanges | None]:
    """The model for stated shapes.

    Args:
        model: the network as read from its file.
        shapes: by input, for each axis a number, (least, most), or (least, most, step), or a small
            input's value; of the only input without its name.

    Returns:
        The model with numbers where one is stated, and the ranges; None where there are none.

    Raises:
        InputError: as `ShapeRanges.of`.
    """
    specs = [InputSpec(each.name, each.shape, each.dtype) for each in model.inputs]
    shapes = _listed(shapes)
    if len(specs) == 1 and isinstance(shapes, tuple | list):
        shapes = {specs[0].name: shapes}
    ranges = ShapeRanges.of(shapes, specs)
    pairs = list(zip(model.inputs, ranges.axes, strict=True))
    inputs = tuple(replace(each, shape=_stated(each, axes)) for each, axes in pairs)
    outputs = model.output_shapes
    if overridden(model, inputs):
        outputs = (None,) * len(outputs)
    stated = replace(model, inputs=inputs, output_shapes=outputs)
    fixed = not ranges.values and all(each.static_shape is not None for each in inputs)
    return stated, None if fixed else ranges


def _stated(declared: ModelInput, axes: Sequence[range]) -> tuple[int | str | None, ...]:
    names = declared.shape or (None,) * len(axes)
    return tuple(
        axis[0] if len(axis) == 1 else name if isinstance(name, str) else None
        for axis, name in zip(axes, names, strict=True)
    )


def overridden(model: Model, inputs: Sequence[ModelInput]) -> bool:
    """Return whether stated shapes change an extent that the file fixes, or leave it open."""
    return any(
        isinstance(old, int) and old != new
        for before, after in zip(model.inputs, inputs, strict=True)
        for old, new in zip(before.shape or (), after.shape or (), strict=False)
    )


def misfit(error: LeanConvError, model: Model, stated: Model) -> LeanConvError:
    """The error where stated extents are not those of the file, and its nodes do not take them."""
    if not isinstance(error, ModelError) or not overridden(model, stated.inputs):
        return error
    old, new = (
        ", ".join(f"{each.name} {shape_text(each.shape)}" for each in one.inputs)
        for one in (model, stated)
    )
    return InputError(
        f"the file fixes {old}, and its nodes do not take {new}, which shapes states: {error}; "
        "state a shape that they take, or export the model with open sizes"
    )


_MULTIPLES = (2, 4, 8, 16, 32, 64, 128)


def with_sizes(error: ModelError, model: Model, shapes: Sequence[Shape]) -> ModelError:
    """The error with sizes that fit, where the network leaves them open.

    Args:
        error: the one that binding the model to the shapes raised.
        model: the network as read from its file.
        shapes: of all inputs.
    """
    multiple = fitting_multiple(model, shapes)
    if multiple is None:
        return error
    pairs = zip(model.inputs, shapes, strict=True)
    listed = ", ".join(shape_text(_near(*each, multiple)) for each in pairs)
    return ModelError(f"{error}; sizes that are multiples of {multiple} fit, as {listed}")


def fitting_multiple(model: Model, shapes: Sequence[Shape]) -> int | None:
    """Return the number that open sizes have to be multiples of; None if none would help.

    Maps of two branches differ in size where one of them has rounded an odd size. So the network is
    bound to sizes near those that were given: the smallest power of two whose odd multiples fit is
    what sizes have to be multiples of.
    """
    for multiple in _MULTIPLES:
        near = [_near(*each, multiple) for each in zip(model.inputs, shapes, strict=True)]
        if all(new == old for new, old in zip(near, shapes, strict=True)):
            continue
        names = (each.name for each in model.inputs)
        try:
            model.bind(dict(zip(names, near, strict=True)), late=True)
        except LeanConvError:
            continue
        return None if _is_multiple(model.inputs, shapes, multiple) else multiple
    return None


def _open_axes(declared: ModelInput, shape: Shape) -> list[int]:
    """The axes whose sizes the file leaves open; the first one is the batch."""
    known = declared.shape or (None,) * len(shape)
    return [axis for axis in range(1, len(shape)) if not isinstance(known[axis], int)]


def _near(declared: ModelInput, shape: Shape, multiple: int) -> Shape:
    """Open sizes as the next odd multiples: what they fit, every multiple does."""
    sizes = list(shape)
    for axis in _open_axes(declared, shape):
        count = -(-sizes[axis] // multiple)
        sizes[axis] = (count + 1 - count % 2) * multiple
    return tuple(sizes)


def _is_multiple(inputs: Sequence[ModelInput], shapes: Sequence[Shape], multiple: int) -> bool:
    pairs = zip(inputs, shapes, strict=True)
    return all(shape[a] % multiple == 0 for i, shape in pairs for a in _open_axes(i, shape))
