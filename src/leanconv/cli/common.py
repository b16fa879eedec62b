"""Options and steps that several sub-commands share."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.api.options import checked_threads
from leanconv.errors import InputError, SpecError
from leanconv.units import parse_bytes

if TYPE_CHECKING:
    from leanconv import Network

Shape = tuple[int, ...]
_PROBLEM = re.compile(r"(mb|g|ic)\d+[a-z]+\d")


class UsageError(InputError):
    """The command line itself is wrong, whatever the files hold: exit code 2, as argparse's own."""


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a network is planned."""
    parser.add_argument(
        "--threads", type=thread_count, metavar="N", help="threads (default: all CPUs)"
    )
    parser.add_argument("--dtype", choices=("float32", "float64"), help="compute in this type")
    parser.add_argument(
        "--memory-limit", type=byte_count, metavar="BYTES", help="budget, such as 12MiB"
    )
    parser.add_argument(
        "--max-error",
        type=positive_number,
        metavar="X",
        help="largest relative error that plans may expect",
    )
    parser.add_argument(
        "--reproducible", action="store_true", help="the same bits for any batch and thread count"
    )
    parser.add_argument("--tune", action="store_true", help="measure candidates and remember")
    parser.add_argument(
        "--algorithm",
        action="append",
        type=_named_algorithm,
        default=[],
        metavar="LAYER=ALGORITHM",
        help="how a convolution is computed, such as conv1=winograd:m=4 (repeatable)",
    )


def load_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments of `leanconv.load` that the options ask for."""
    return {
        "threads": options.threads,
        "dtype": options.dtype,
        "memory_limit": options.memory_limit,
        "max_error": options.max_error,
        "tune": options.tune,
        "algorithms": dict(options.algorithm) or None,
        "reproducible": options.reproducible,
    }


def add_shape_option(parser: argparse.ArgumentParser) -> None:
    """Add `--shape`, for networks whose inputs have symbolic extents."""
    parser.add_argument(
        "--shape",
        action="append",
        type=named_shape,
        default=[],
        metavar="[NAME=]N,C,H,W",
        help="input shape, where the model leaves it open (a batch left open is 1)",
    )


def _named_algorithm(text: str) -> tuple[str, str]:
    """Read a layer's name and its algorithm (an argparse type)."""
    layer, equals, algorithm = text.partition("=")
    if not (layer and equals and algorithm):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not LAYER=ALGORITHM; give one such as conv1=winograd:m=4"
        )
    return layer, algorithm


def positive(text: str) -> int:
    """Read an integer of at least 1 (an argparse type)."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return int(text)


def thread_count(text: str) -> int:
    """Read a number of threads (an argparse type)."""
    try:
        return checked_threads(positive(text)) or 0
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def positive_number(text: str) -> float:
    """Read a number above 0 (an argparse type)."""
    number = _number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, such as 1e-5")
    return number


def duration(text: str) -> float:
    """Read a time, 0 or longer (an argparse type)."""
    number = _number(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def _number(text: str) -> float:
    """The number that a text says, NaN if it says none."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def byte_count(text: str) -> int:
    """Read a number of bytes (an argparse type)."""
    try:
        return parse_bytes(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def named_shape(text: str) -> tuple[str, Shape]:
    """Read `NAME=1,3,224,224` or `1,3,224,224` (an argparse type)."""
    name, _, extents = text.rpartition("=")
    return name, tuple(positive(extent) for extent in extents.split(","))


def is_problem(text: str) -> bool:
    """Tell a problem line (`ic64ih56oc64oh54kh3`) from a file name."""
    return _PROBLEM.match(text) is not None and not os.path.exists(text)


def input_shapes(
    network: Network, given: Sequence[tuple[str, Shape]], batch: int | None = None
) -> dict[str, Shape]:
    """Choose a shape for every input of a network.

    Args:
        network: the network; extents that it leaves open are no ints in its inputs' shapes.
        given: what `--shape` said; an empty name means the only input.
        batch: the first extent where it is open (default 1).

    Raises:
        InputError: a name is unknown, a rank is wrong, or an extent other than the first is open.
    """
    declared = {value.name: value.shape for value in network.inputs}
    chosen: dict[str, Shape] = {}
    for name, shape in given:
        key = name or (next(iter(declared)) if len(declared) == 1 else "")
        if key not in declared:
            raise InputError(
                f"--shape names the input {name!r}; expected one of {', '.join(declared)}: "
                "give --shape NAME=1,3,224,224"
            )
        extents = declared[key]
        if extents is not None and len(shape) != len(extents):
            raise InputError(
                f"--shape gives {len(shape)} extents for input {key}, which has "
                f"{len(extents)}: expected {_shown(extents)}"
            )
        chosen[key] = shape
    for name, extents in declared.items():
        if name in chosen:
            continue
        first = batch or 1
        shape = tuple(
            e if isinstance(e, int) else first if i == 0 else 0 for i, e in enumerate(extents or ())
        )
        if extents is None or 0 in shape:
            raise InputError(
                f"the network leaves the shape of input {name} open: {_shown(extents)}; "
                f"give it with --shape {name}={_example(extents)}"
            )
        chosen[name] = shape
    return chosen


def random_inputs(network: Network, shapes: Mapping[str, Shape], seed: int = 0) -> dict[str, Any]:
    """Return standard normal arrays of the shapes, in the dtypes that the network declares."""
    generator = np.random.default_rng(seed)
    dtypes = {value.name: value.dtype for value in network.inputs}
    return {
        name: generator.standard_normal(shape).astype(dtypes[name])
        for name, shape in shapes.items()
    }


def _example(extents: Sequence[int | str | None] | None) -> str:
    """A shape of the kind that is wanted: one image, 224 wherever its size is open."""
    given = extents or ("N", 3, None, None)
    return ",".join(str(e if isinstance(e, int) else 224 if i else 1) for i, e in enumerate(given))


def _shown(extents: Sequence[int | str | None] | None) -> str:
    if extents is None:
        return "of any rank"
    return "x".join("?" if extent is None else str(extent) for extent in extents)
