"""The models of a server, from their files to plans within its memory limit."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import leanconv
from leanconv.api.inputs import InputSpec, Known, Shape, given_values
from leanconv.api.network import Network
from leanconv.api.open_library import is_library
from leanconv.errors import BudgetError, InputError, LeanConvError
from leanconv.records import dataclass
from leanconv.server.libraries import LibraryNetwork
from leanconv.server.limits import NOT_FOUND, Limits, RefusedError
from leanconv.server.plans import Plans
from leanconv.server.protocol import check_types, described
from leanconv.units import format_bytes, shape_text

MOST_MODELS = 1000
_KEPT_LATENCIES = 1000
_NAME = re.compile(r"[\w.+-][\w.+ -]{0,199}")


@dataclass(frozen=True)
class Source:
    """The file of a model, with its name and version."""

    name: str
    version: str
    path: Path


def sources(given: Iterable[str]) -> list[Source]:
    """The models that a command line names: files, `NAME=FILE`, folders.

    A folder holds `NAME.onnx`, which is version 1, and `NAME/VERSION/model.onnx`. Libraries of
    `leanconv.compile` are named one by one: their code becomes a part of the server.

    Raises:
        InputError: there is none in a folder, or two have the same name and version.
    """
    found: dict[tuple[str, str], Source] = {}
    for text in given:
        for source in _sources(text):
            key = source.name, source.version
            if key in found:
                raise InputError(
                    f"two models are {source.name!r} of version {source.version}: "
                    f"{found[key].path} and {source.path}; name one: NAME={source.path}"
                )
            if not _NAME.fullmatch(source.name):
                raise InputError(
                    f"{source.path}: the name {source.name!r} is no part of an address; name it: "
                    f"NAME={source.path}"
                )
            found[key] = source
            if len(found) > MOST_MODELS:
                raise InputError(f"more than {MOST_MODELS} models; expected fewer")
    return list(found.values())


def _sources(text: str) -> Iterator[Source]:
    name, equals, rest = text.partition("=")
    if equals and not os.path.exists(text) and os.sep not in name:
        yield Source(name, "1", Path(rest))
        return
    path = Path(text)
    if not path.is_dir():
        library = is_library(path)
        yield Source(path.stem.removeprefix("lib") if library else path.stem, "1", path)
        return
    inside = [Source(file.stem, "1", file) for file in sorted(path.glob("*.onnx"))]
    for file in sorted(path.glob("*/*/model.onnx")):
        if file.parent.name.isdecimal():
            inside.append(Source(file.parent.parent.name, file.parent.name, file))
    if not inside:
        raise InputError(
            f"{text} holds no model; expected NAME.onnx or NAME/VERSION/model.onnx, where VERSION "
            "is a number"
        )
    yield from inside


class ServedModel:
    """A model that is ready.

    Args:
        source: its name and version.
        plans: of the model.

    Attributes:
        expected: requests for it that are being read.
        latencies: of the last requests, in nanoseconds.
        answered: requests that got a result.
    """

    def __init__(self, source: Source, plans: Plans) -> None:
        self.name, self.version, self.plans = source.name, source.version, plans
        self.expected = 0
        self.latencies: deque[int] = deque(maxlen=_KEPT_LATENCIES)
        self.answered = 0

    def answered_in(self, duration_ns: int) -> None:
        """Remember how long a request took."""
        self.latencies.append(duration_ns)
        self.answered += 1

    def metadata(self, versions: Sequence[str]) -> dict[str, Any]:
        """Return the model's metadata, as the protocol has it."""
        return {
            "name": self.name,
            "versions": list(versions),
            "platform": "onnx_leanconv",
            "inputs": described(self.plans.inputs),
            "outputs": described(self.plans.outputs),
        }


class Models:
    """All models of a server."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = model

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def versions(self, name: str) -> list[str]:
        """The versions of a model, ascending."""
        return sorted(self._models[name], key=int)

    def found(self, name: str, version: str | None) -> ServedModel:
        """A model; its newest version where none is named.

        Raises:
            RefusedError: there is none.
        """
        versions: Mapping[str, ServedModel] = self._models.get(name, {})
        if not versions:
            raise RefusedError(
                NOT_FOUND, f"there is no model {name[:100]!r}; there are {', '.join(self._models)}"
            )
        found = versions.get(self.versions(name)[-1] if version is None else version)
        if found is None:
            there = ", ".join(self.versions(name))
            raise RefusedError(
                NOT_FOUND, f"model {name!r} has no version {version!r}; it has {there}"
            )
        return found


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
        say: called with a line on each model that is ready.
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
            told = _told(error, left, limits)
            error.args = (told if str(source.path) in told else f"{source.path}: {told}",)
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
    """Return an error's message; if plans do not fit, with a limit of the server that would do."""
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
    network: Network | LibraryNetwork
    if is_library(source.path):
        network = LibraryNetwork(leanconv.open(source.path), source.path)
        planned = [each.inputs.items() for each in network.plans]
        shapes = shapes or [{name: kind.shape for name, kind in each} for each in planned]
    else:
        given = {**options, "reproducible": True, "memory_limit": left}
        network = leanconv.load(source.path, **given)
    check_types((*network.inputs, *network.outputs))
    plans = Plans(network, limits.groups, limits.batch)
    every, own = values  # those for all models are for those that have such an input
    names = {spec.name for spec in plans.inputs}
    wanted_values = {**{n: each for n, each in every.items() if n in names}, **own}
    known = given_values(plans.inputs, wanted_values.items())
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
