"""Shapes and values of a network's inputs, as the command line gives them; random arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from leanconv.cli.common import Extents, Shape
from leanconv.errors import InputError
from leanconv.half_arrays import in_memory
from leanconv.types import BFLOAT16, FLOAT32, DType
from leanconv.units import shape_text

if TYPE_CHECKING:
    from leanconv import Network

_Given = TypeVar("_Given", bound=Extents)


def given_shapes(network: Network, given: Sequence[tuple[str, _Given]]) -> dict[str, _Given]:
    """The shapes that `--shape` gives, by the inputs' names.

    Args:
        network: the network; extents that it leaves open are no ints in its inputs' shapes.
        given: what `--shape` said, shapes or ranges; an empty name means the only input.

    Raises:
        InputError: a name is unknown, or a rank is wrong.
    """
    declared = {value.name: value.shape for value in network.inputs}
    chosen: dict[str, _Given] = {}
    for name, shape in given:
        key = name or (next(iter(declared)) if len(declared) == 1 else "")
        if key not in declared:
            raise InputError(
                f"--shape names the input {name!r}; expected one of {', '.join(declared)}: "
                "give --shape NAME=1x3x224x224"
            )
        extents = declared[key]
        if extents is not None and len(shape) != len(extents):
            raise InputError(
                f"--shape gives {len(shape)} extents for input {key}, which has "
                f"{len(extents)}: expected {shape_text(extents)}"
            )
        chosen[key] = shape
    return chosen


def shape_groups(given: Sequence[tuple[str, _Given]]) -> list[list[tuple[str, _Given]]]:
    """What `--shape` said in groups, each with an input's name, or the only one, at most once."""
    groups: list[list[tuple[str, _Given]]] = [[]]
    for name, shape in given:
        if any(name == known or not (name and known) for known, _ in groups[-1]):
            groups.append([])
        groups[-1].append((name, shape))
    return groups


def input_shapes(
    network: Network,
    given: Sequence[tuple[str, Shape]],
    batch: int | None = None,
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Shape]:
    """Choose a shape for every input of a network.

    Args:
        network, given: as of `given_shapes`.
        batch: the first extent where it is open (default 1).
        values: of `given_values`, whose shapes these inputs have.

    Raises:
        InputError: a name is unknown, a rank is wrong, an extent other than the first is open, or
            there is a batch, and no input that leaves its own open.
    """
    chosen = given_shapes(network, given)
    chosen.update({name: array.shape for name, array in values.items()})
    declared = [(value.name, value.shape) for value in network.inputs]
    left = [extents for name, extents in declared if name not in chosen]
    if batch is not None and not any(e is None or (e and not isinstance(e[0], int)) for e in left):
        shapes = ", ".join(f"{n} {shape_text(chosen.get(n, e))}" for n, e in declared)
        raise InputError(
            f"--batch {batch} has no input whose batch is open: the network takes {shapes}; leave "
            "--batch out"
        )
    for name, extents in declared:
        if name in chosen:
            continue
        first = batch or 1
        shape = tuple(
            e if isinstance(e, int) else first if i == 0 else 0 for i, e in enumerate(extents or ())
        )
        if extents is None or 0 in shape:
            raise InputError(
                f"the network leaves the shape of input {name} open: {shape_text(extents)}; "
                f"give it with --shape {name}={_example(extents)}"
            )
        chosen[name] = shape
    return chosen


def planned_for(
    network: Network,
    given: Sequence[tuple[str, Shape]],
    shapes: Mapping[str, Shape],
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Network:
    """The network planned for shapes: for these alone where `--shape` says so.

    Args:
        network, given, values: as of `input_shapes`.
        shapes: of all inputs.
    """
    if given:
        network = specialised(network, shapes)
    network.bind({**shapes, **values})
    return network


def stated_for(
    network: Network,
    given: Sequence[tuple[str, Shape]],
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Network:
    """The network planned for the shapes that `--shape` says alone, if these leave nothing open.

    Args:
        network, given, values: as of `input_shapes`.
    """
    declared = {spec.name: spec.shape or (None,) for spec in network.inputs}
    shapes: dict[str, Any] = {**declared, **given_shapes(network, given)}
    shapes.update({name: array.shape for name, array in values.items()})
    if not given or not all(isinstance(n, int) for s in shapes.values() for n in s):
        return network
    return specialised(network, shapes)


def specialised(network: Network, shapes: Mapping[str, Shape]) -> Network:
    """The network for these shapes of all inputs alone: itself where its file fixes the same."""
    other = any(spec.shape != shapes[spec.name] for spec in network.inputs)
    return network.specialise(shapes) if other else network


def random_inputs(
    network: Network,
    shapes: Mapping[str, Shape],
    seed: int = 0,
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return arrays of the shapes, in the dtypes that the network declares, and given values.

    Floats are standard normal, integers from 0 to 255 or what their type holds of that, as pixels;
    of types of at most 8 bits that NumPy lacks, codes.
    """
    generator = np.random.default_rng(seed)
    dtypes = {value.name: value.dtype for value in network.inputs}
    made = {name: _random(generator, shape, dtypes[name]) for name, shape in shapes.items()}
    return {**made, **values}


def _random(generator: np.random.Generator, shape: Shape, dtype: DType) -> np.ndarray:
    if dtype == BFLOAT16:
        return in_memory(generator.standard_normal(shape).astype(FLOAT32), dtype)
    if dtype.is_float and dtype.held == dtype:
        return generator.standard_normal(shape).astype(dtype)
    most = min(255, int(dtype.held.high if dtype.is_float else dtype.high))
    return generator.integers(0, most + 1, shape).astype(dtype.numpy)


def _example(extents: Sequence[int | str | None] | None) -> str:
    """A shape of the kind that is wanted: one image, 224 wherever its size is open."""
    given = extents or ("N", 3, None, None)
    return "x".join(str(e if isinstance(e, int) else 224 if i else 1) for i, e in enumerate(given))
