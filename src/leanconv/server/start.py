"""From the files of models to a server that is ready: loaded, planned, within the memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

import leanconv
from leanconv.api.inputs import InputSpec, Known, Shape, given_values
from leanconv.errors import BudgetError, InputError, LeanConvError
from leanconv.server.limits import Limits
from leanconv.server.models import Models, ServedModel, Source
from leanconv.server.plans import Plans
from leanconv.server.ports import check_types
from leanconv.units import format_bytes, shape_text


def loaded(
    found: Iterable[Source],
    options: Mapping[str, Any],
    shapes: Mapping[str, Sequence[Mapping[str, Shape]]],
    limits: Limits,
    say: Callable[[str], None],
    values: Mapping[str, Mapping[str, tuple[int, ...]]] = MappingProxyType({}),
) -> Models:
    """Load models and plan them, one after the other, each within what the others leave.

    Args:
        found: where they come from.
        options: of `leanconv.load`.
        shapes: by model (`""` for all), shapes of inputs that are planned now.
        limits: of the server.
        say: is told of each model that is ready.
        values: by model, too, integers of small inputs that decide what is planned now.

    Raises:
        LeanConvError: a model cannot be loaded, or does not fit; the message names it.
    """
    models: list[ServedModel] = []
    for source in found:
        left = limits.plan_bytes
        if left is not None:
            left -= sum(model.plans.held_bytes for model in models)
            if left < 1:
                raise BudgetError(
                    f"{source.path}: {format_bytes(limits.plan_bytes or 0)} are taken by "
                    f"{', '.join(model.name for model in models)}; raise --memory-limit",
                    0,
                )
        wanted = [*shapes.get("", ()), *shapes.get(source.name, ())]
        try:
            known = values.get("", {}), values.get(source.name, {})
            model = _loaded(source, options, wanted, known, left, limits)
        except LeanConvError as error:
            error.args = (f"{source.path}: {_told(error, left, limits)}",)
            raise
        models.append(model)
        say(_described(model))
    names = {model.name for model in models}
    unknown = [name for name in (*shapes, *values) if name and name not in names]
    if unknown:
        option = "--shape" if unknown[0] in shapes else "--value"
        raise InputError(
            f"{option} names the model {unknown[0]!r}; expected one of "
            f"{', '.join(dict.fromkeys(model.name for model in models))}"
        )
    return Models(models)


def _told(error: LeanConvError, left: int | None, limits: Limits) -> str:
    """What an error says; of plans that do not fit, with the server's limit that would do."""
    text = str(error)
    if not isinstance(error, BudgetError) or not error.smallest_bytes or left is None:
        return text
    others = (limits.plan_bytes or 0) - left
    taken = f", other models {format_bytes(others)}" if others else ""
    return (
        f"{text.partition('; give memory_limit')[0]}; requests have "
        f"{format_bytes(limits.request_bytes)} of the server's limit{taken}; give "
        f"memory_limit={limits.memory_for(others + error.smallest_bytes)} or more, and more for "
        "code and larger batches"
    )


def _loaded(
    source: Source,
    options: Mapping[str, Any],
    shapes: Sequence[Mapping[str, Shape]],
    values: Sequence[Mapping[str, tuple[int, ...]]],
    left: int | None,
    limits: Limits,
) -> ServedModel:
    network = leanconv.load(source.path, **{**options, "reproducible": True, "memory_limit": left})
    check_types((*network.inputs, *network.outputs))
    plans = Plans(network, limits.groups, limits.batch)
    every, own = values  # those for all models are for those that have such an input
    names = {spec.name for spec in network.inputs}
    wanted_values = {**{n: each for n, each in every.items() if n in names}, **own}
    known = given_values(network.inputs, wanted_values.items())
    for complete in _at_start(plans, shapes, known):
        arrays = [known.get(*each) for each in _zeros(plans, complete)]
        # Twice where images turn out to be mixed: then what is wanted is all of them together.
        while plans.found((wanted := plans.wanted(arrays)).key) is None:
            plans.plan(wanted, left, keep=True)
    return ServedModel(source, plans)


def _at_start(
    plans: Plans, shapes: Sequence[Mapping[str, Shape]], values: Known
) -> Iterator[list[Shape]]:
    """Shapes of all inputs that are planned before the server starts: those given, or the file's.

    Raises:
        InputError: one that is given does not fit.
    """
    for given in shapes or [{}]:
        sizes = {**given, **{name: array.shape for name, array in values.items()}}
        found = [_shape(plans, spec, sizes) for spec in plans.inputs]
        complete = [shape for shape in found if shape is not None]
        # Values of small inputs that are not given are known with a request alone.
        if len(complete) == len(found) and values.keys() >= set(plans.small):
            yield complete


def _shape(plans: Plans, spec: InputSpec, given: Mapping[str, Shape]) -> Shape | None:
    """The shape of an input; None where neither the command line nor the file says one."""
    shape = given.get(spec.name) or (given.get("") if len(plans.inputs) == 1 else None)
    if shape is not None:
        if not spec.takes(shape):
            raise InputError(
                f"--shape {shape_text(shape)} does not fit input {spec.name!r}; expected "
                f"{shape_text(spec.shape)}"
            )
        return shape
    if spec.shape is None:
        return None
    extents = (1, *spec.shape[1:]) if plans.may_batch else spec.shape
    fixed = tuple(extent for extent in extents if isinstance(extent, int))
    return fixed if len(fixed) == len(extents) else None


def _zeros(plans: Plans, shapes: Sequence[Shape]) -> list[tuple[str, np.ndarray]]:
    """Names of the inputs, and arrays of their types that take no memory."""
    return [
        (spec.name, np.broadcast_to(np.zeros((), spec.dtype.numpy), shape))
        for spec, shape in zip(plans.inputs, shapes, strict=True)
    ]


def _described(model: ServedModel) -> str:
    plans = model.plans
    groups = plans.groups()
    text = f"{model.name} version {model.version}: "
    if not groups:
        return text + "shapes are planned as requests bring them (or give --shape)"
    parts = []
    for _, group in groups:
        inputs = group.smallest.inputs.items()
        shapes = ", ".join(f"{name} {shape_text(kind.shape)}" for name, kind in inputs)
        sizes = f" in batches of {', '.join(map(str, group.sizes))}" if group.batched else ""
        parts.append(shapes + sizes)
    return text + f"{'; '.join(parts)}: {format_bytes(plans.held_bytes)}"
