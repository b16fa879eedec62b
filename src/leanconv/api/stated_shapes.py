"""A model for shapes that the user states, whatever its file says of them.

Numbers are fixed, so that the network is planned as one whose file fixes them; ranges are open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leanconv.api.inputs import InputSpec
from leanconv.api.shape_ranges import ShapeRanges
from leanconv.errors import InputError, LeanConvError, ModelError
from leanconv.graph.onnx_import import Model, ModelInput
from leanconv.spec.arguments import numbers_of
from leanconv.units import shape_text


def are_numbers(shapes: Any) -> bool:
    """Whether shapes as `with_shapes` takes them are numbers alone: no ranges, no values."""
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
        model: what the file says.
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
    """Whether stated inputs have another extent than the file fixes, or leave one of these open."""
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
