"""Which sizes a network takes, where it refuses those of a call: multiples of its strides."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.api.inputs import Shape
from leanconv.errors import LeanConvError, ModelError
from leanconv.graph.onnx_import import Model, ModelInput
from leanconv.units import shape_text

_MULTIPLES = (2, 4, 8, 16, 32, 64, 128)


def with_sizes(error: ModelError, model: Model, shapes: Sequence[Shape]) -> ModelError:
    """The error with sizes that fit, where the network leaves them open.

    Args:
        error: what binding the model to the shapes raised.
        model: what the file says.
        shapes: of all inputs.
    """
    multiple = fitting_multiple(model, shapes)
    if multiple is None:
        return error
    pairs = zip(model.inputs, shapes, strict=True)
    listed = ", ".join(shape_text(_near(*each, multiple)) for each in pairs)
    return ModelError(f"{error}; sizes that are multiples of {multiple} fit, as {listed}")


def fitting_multiple(model: Model, shapes: Sequence[Shape]) -> int | None:
    """What open sizes have to be multiples of, where shapes are refused that are not; else None.

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
