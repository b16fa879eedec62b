"""From the files of models to a server that is ready: loaded, planned, within the memory limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import leanconv
from leanconv.api.inputs import Shape
from leanconv.errors import BudgetError, InputError, LeanConvError
from leanconv.server.models import Models, ServedModel, Source
from leanconv.server.plans import Plans, Wanted
from leanconv.server.ports import checked
from leanconv.units import format_bytes, shape_text

Said = Callable[[str], None]


def loaded(
    found: Iterable[Source],
    options: Mapping[str, Any],
    shapes: Mapping[str, Sequence[Mapping[str, Shape]]],
    memory_limit: int | None,
    batch: int,
    groups: int,
    say: Said,
) -> Models:
    """Load models and plan them, one after the other, each within what the others leave.

    Args:
        found: where they come from.
        options: of `leanconv.load`.
        shapes: by model (`""` for all), shapes of inputs that are planned now.
        memory_limit: of all plans together; None for any.
        batch: images that are computed together.
        groups: shapes of a model that stay planned beside these.
        say: is told of each model that is ready.

    Raises:
        LeanConvError: a model cannot be loaded, or does not fit; the message names it.
    """
    models: list[ServedModel] = []
    for source in found:
        left = memory_limit
        if left is not None:
            left -= sum(model.plans.held_bytes for model in models)
        if left is not None and left < 1:
            raise BudgetError(
                f"{source.path}: {format_bytes(memory_limit or 0)} are taken by "
                f"{', '.join(model.name for model in models)}; raise --memory-limit",
                0,
            )
        wanted = [*shapes.get("", ()), *shapes.get(source.name, ())]
        try:
            model = _loaded(source, options, wanted, left, batch, groups)
        except LeanConvError as error:
            error.args = (f"{source.path}: {error}",)
            raise
        models.append(model)
        say(_described(model))
    unknown = [name for name in shapes if name and name not in {m.name for m in models}]
    if unknown:
        raise InputError(
            f"--shape names the model {unknown[0]!r}; expected one of "
            f"{', '.join(dict.fromkeys(model.name for model in models))}"
        )
    return Models(models)


def _loaded(
    source: Source,
    options: Mapping[str, Any],
    shapes: Sequence[Mapping[str, Shape]],
    left: int | None,
    batch: int,
    groups: int,
) -> ServedModel:
    network = leanconv.load(source.path, **{**options, "reproducible": True, "memory_limit": left})
    checked(network.inputs)
    checked(network.outputs)
    plans = Plans(network, groups, batch)
    for wanted in _at_start(plans, shapes):
        if plans.found(wanted.key) is None:
            group = plans.plan(wanted, left, keep=True)
            if not group.batched and wanted.rows > 1:
                plans.plan(plans.wanted(_zeros(plans, wanted.shapes)), left, keep=True)
    return ServedModel(source, plans)


def _at_start(plans: Plans, shapes: Sequence[Mapping[str, Shape]]) -> list[Wanted]:
    """What is planned before the server starts: shapes that the file fixes, and those given."""
    found = []
    for given in shapes or [{}]:
        complete = []
        for spec in plans.inputs:
            shape = given.get(spec.name) or (given.get("") if len(plans.inputs) == 1 else None)
            extents = spec.shape or (() if spec.shape == () else None)
            if shape is None and extents is not None:
                rest = extents[1:] if plans.may_batch else extents
                if all(isinstance(extent, int) for extent in rest):
                    first = (1,) if plans.may_batch else ()
                    shape = (*first, *(int(extent or 0) for extent in rest))
            if shape is None:
                break
            if not spec.takes(shape):
                raise InputError(
                    f"--shape {shape_text(shape)} does not fit input {spec.name!r}; expected "
                    f"{shape_text(spec.shape)}"
                )
            complete.append(tuple(shape))
        else:
            if not plans.small:  # the values of small inputs are known with a request alone
                found.append(plans.wanted(_zeros(plans, complete)))
    return found


def _zeros(plans: Plans, shapes: Sequence[Shape]) -> list[np.ndarray]:
    """Arrays of the inputs' types that take no memory."""
    return [
        np.broadcast_to(np.zeros((), spec.dtype.numpy), shape)
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
        plan = group.plans[group.sizes[0]].plan
        shapes = ", ".join(f"{n} {shape_text(k.shape)}" for n, k in plan.inputs.items())
        sizes = f" in batches of {', '.join(map(str, group.sizes))}" if group.batched else ""
        parts.append(shapes + sizes)
    return text + f"{'; '.join(parts)}: {format_bytes(plans.held_bytes)}"
