"""Names on the command line: problems such as `ic64ih56oc64oh54kh3`, models, their inputs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from leanconv.cli.options import Extents, Shape
from leanconv.errors import InputError, SpecError
from leanconv.half_arrays import in_memory
from leanconv.reference.layers import LAYERS
from leanconv.spec.conv import ConvSpec
from leanconv.types import BFLOAT16, FLOAT32, DType
from leanconv.units import shape_text

if TYPE_CHECKING:
    from leanconv import Network

# What a problem begins with; a model's file may be called so, too, but then it is there.
_PROBLEM = re.compile(r"_*(mb|g|ic|oc|[ioksdp][dhw])\d")
_CV = re.compile(r"cv\d+")
_FORM = (
    "[mbN] [gN] icN ihN "
    "[iwN] ocN [ohN] [owN] khN [kwN] [shN] [swN] [phN] [pwN] [dhN] [dwN] without the blanks, N "
    "numbers (mb images, g groups, i input, o output, k kernel, s stride, p padding, d dilation, "
    "0 for dense), or one of cv1 to cv12, the layers of the MEC paper"
)
_GRAMMAR = f"a problem is one convolution on one line, such as ic64ih56oc64oh54kh3: {_FORM}"
_Given = TypeVar("_Given", bound=Extents)


def is_problem(text: str) -> bool:
    """Tell a problem line (`ic64ih56oc64oh54kh3`) from a file name.

    Raises:
        InputError: it is neither: no file has this name, and it does not look like one.
    """
    if os.path.exists(text):
        return False
    if text in LAYERS or _PROBLEM.match(text) is not None:
        return True
    _check_layer(text)
    if _like_a_file(text):
        return False
    raise InputError(f"{text!r} is neither a file that exists nor a problem; {_GRAMMAR}")


def model_file(text: str, command: str) -> str:
    """The file of a model, for a command that takes no problems.

    Raises:
        InputError: the text is a problem line.
    """
    problem = text in LAYERS or _PROBLEM.match(text) is not None
    if problem and not _like_a_file(text):
        raise InputError(
            f"{text!r} is a problem; `leanconv {command}` takes models only: give an ONNX file "
            f"(problems are taken by `leanconv explain`, `algorithms` and `bench`)"
        )
    return text


def _check_layer(text: str) -> None:
    if _CV.fullmatch(text) and text not in LAYERS:
        raise InputError(
            f"there is no layer {text!r}; expected cv1 to cv12, those of the MEC paper"
        )


def read_problem(text: str, **changes: Any) -> ConvSpec:
    """Read a problem line.

    Args:
        text: the line, or a layer of the MEC paper by its name, "cv1" to "cv12".
        changes: other fields of the spec, such as `dtype="float64"`.

    Raises:
        InputError: the line cannot be read; the message says what a problem looks like.
    """
    try:
        return ConvSpec.parse(LAYERS.get(text, text), **changes)
    except SpecError as error:
        if _PROBLEM.match(text) is None and _like_a_file(text):
            there = "a file" if os.path.exists(text) else "the name of a file that does not exist"
            raise InputError(f"{text!r} is {there}, expected a problem; {_GRAMMAR}") from error
        _check_layer(text)
        has_example = "such as" in str(error)
        form = f": {_FORM}" if has_example else f"; {_GRAMMAR}"
        raise InputError(f"{error}{form}") from error


def _like_a_file(text: str) -> bool:
    """Return whether a text looks like the name of a file: it has a folder or an ending."""
    return os.sep in text or "." in text or os.path.exists(text)


def given_shapes(network: Network, given: Sequence[tuple[str, _Given]]) -> dict[str, _Given]:
    """The shapes that `--shape` gives, by the inputs' names.

    Args:
        network: the network; extents that it leaves open are no ints in its inputs' shapes.
        given: values of `--shape`, shapes or ranges; an empty name means the only input.

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
    """Group the values of `--shape`, so that each input is in a group at most once."""
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
