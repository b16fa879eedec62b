"""Options and steps that several sub-commands share."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from leanconv.api.options import checked_threads
from leanconv.errors import InputError, SpecError
from leanconv.reference.layers import LAYERS
from leanconv.spec.conv import ConvSpec
from leanconv.types import FLOAT32, FLOAT64
from leanconv.units import parse_bytes, shape_text

if TYPE_CHECKING:
    from leanconv import Network

Shape = tuple[int, ...]
Extents = tuple[int | tuple[int, ...], ...]
_Extent = TypeVar("_Extent")
_Given = TypeVar("_Given", bound=Extents)
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


IMAGES_HELP = (
    "pictures (PNG, JPEG, BMP, GIF, PPM, TIFF, WebP, JPEG 2000), or arrays: .npy (of a single "
    "input) or .npz (by the inputs' names)"
)


class UsageError(InputError):
    """The command line itself is wrong, whatever the files hold: exit code 2, as argparse's own."""


def add_load_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a network is planned."""
    add_threads_option(parser)
    parser.add_argument(
        "--dtype",
        choices=(FLOAT32, FLOAT64),
        help="compute in this type (default: the model's; of a problem, float32)",
    )
    parser.add_argument(
        "--memory-limit",
        type=byte_count,
        metavar="BYTES",
        help="the most that weights and activations may take, such as 12MiB, 1.5G or 8000000",
    )
    parser.add_argument(
        "--max-error",
        type=positive_number,
        metavar="X",
        help="largest relative error that a plan may expect, such as 1e-5 (default: aims at 1e-5 "
        "in float32)",
    )
    parser.add_argument(
        "--reproducible", action="store_true", help="the same bits for any batch and thread count"
    )
    parser.add_argument(
        "--tune",
        action="store_true",
        help="measure the best candidates instead of estimating them, and remember the results",
    )
    parser.add_argument(
        "--algorithm",
        action="append",
        type=_named_algorithm,
        default=[],
        metavar="LAYER=ALGORITHM",
        help="how a convolution is computed, such as conv1=winograd:m=4 (repeatable)",
    )


def add_threads_option(parser: argparse.ArgumentParser, default: int | None = None) -> None:
    """Add `--threads`; its default is None in every command: that of the settings."""
    usual = default or "LEANCONV_THREADS, else all CPUs of this process"
    parser.add_argument(
        "--threads",
        type=thread_count,
        default=default,
        metavar="N",
        help=f"threads (default: {usual})",
    )


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how results are printed."""
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--wide", action="store_true", help="print every column, however narrow the terminal"
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
        metavar="[NAME=]NxCxHxW",
        help="input shape, where the model leaves it open (a batch left open is 1)",
    )


def add_value_option(parser: argparse.ArgumentParser) -> None:
    """Add `--value`, for networks of which small integer inputs decide what they compute."""
    parser.add_argument(
        "--value",
        action="append",
        type=named_value,
        default=[],
        metavar="NAME=N[,N]",
        help="value of a small integer input, such as a sampling rate that decides what runs",
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


def not_negative(text: str) -> float:
    """Read a number of at least 0 (an argparse type)."""
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
    """Read `NAME=1x3x224x224`, or a shape in any form that messages have (an argparse type)."""
    return _named(text, positive, "1x3x224x224")


def named_value(text: str) -> tuple[str, tuple[int, ...]]:
    """Read `NAME=16000` or `NAME=1,3,-1` (an argparse type)."""
    name, _, numbers = text.rpartition("=")
    try:
        found = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        found = ()
    if not (name and found):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no value; give integers such as {name or 'NAME'}=16000"
        )
    return name, found


def named_range(text: str) -> tuple[str, Extents]:
    """Read `NAME=1x3x48x32-2304`, with steps `1x3x32-960/32x640`, or a shape (an argparse type)."""
    return _named(text, _extents, "1x3x48x32-2304")


def _extents(text: str) -> int | tuple[int, ...]:
    """Read `224`, `32-2304` or `32-960/32`."""
    least, dash, rest = text.partition("-")
    if not dash:
        return positive(text)
    most, slash, step = rest.partition("/")
    ends = positive(least), positive(most)
    return (*ends, positive(step)) if slash else ends


def _named(
    text: str, read: Callable[[str], _Extent], example: str
) -> tuple[str, tuple[_Extent, ...]]:
    name, _, extents = text.rpartition("=")
    bare = extents.strip().strip("()[]").strip()
    parts = re.split(r"\s*[,x]\s*|\s+", bare)
    try:
        return name, tuple(read(part) for part in parts)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape ({error}); give one such as {example}, or "
            f"{name or 'NAME'}={example} for one of several inputs"
        ) from error


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names for a message, the first ones where there are many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def unknown(kind: str, name: str, known: Sequence[str]) -> InputError:
    """What is said of a name that is none: what it may have meant, and what there is."""
    names = list(dict.fromkeys(known))
    near = difflib.get_close_matches(name, names, n=1)
    meant = f"did you mean {near[0]!r}? There are" if near else "expected one of"
    return InputError(f"there is no {kind} {name!r}; {meant} {listed(names)}")


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
        InputError: it is a problem line.
    """
    problem = text in LAYERS or _PROBLEM.match(text) is not None
    if problem and not _like_a_file(text):
        raise InputError(
            f"{text!r} is a problem; `leanconv {command}` takes models only: give an ONNX file "
            f"(problems are taken by `leanconv explain`, `algorithms` and `bench`)"
        )
    return text


def _check_layer(text: str) -> None:
    """Refuse a layer of the MEC paper that there is not."""
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
        InputError: it cannot be read; the message says what a problem looks like.
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
    """Whether a text looks like the name of a file: it has a folder or an ending."""
    return os.sep in text or "." in text or os.path.exists(text)


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


def given_values(
    network: Network, given: Sequence[tuple[str, tuple[int, ...]]]
) -> dict[str, np.ndarray]:
    """The arrays that `--value` gives, by the inputs' names.

    Raises:
        InputError: there is no such input, or it takes no such value.
    """
    declared = {value.name: value for value in network.inputs}
    chosen = {}
    for name, numbers in given:
        spec = declared.get(name)
        if spec is None or spec.dtype.is_float or len(spec.shape or (None,)) > 1:
            small = [n for n, s in declared.items() if s.shape is not None and len(s.shape) < 2]
            raise InputError(
                f"--value names the input {name!r}; expected one of integers without axes or with "
                f"one{': ' + ', '.join(small) if small else ', which the network has not'}"
            )
        shape = () if spec.shape == () else (len(numbers),)
        if len(numbers) != max(1, prod(shape)) or not spec.takes(shape):
            raise InputError(
                f"--value gives {len(numbers)} numbers for input {name}; expected "
                f"{shape_text(spec.shape)}"
            )
        chosen[name] = np.array(numbers, spec.dtype).reshape(shape)
    return chosen


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


def random_inputs(
    network: Network,
    shapes: Mapping[str, Shape],
    seed: int = 0,
    values: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return arrays of the shapes, in the dtypes that the network declares, and given values.

    Floats are standard normal, integers from 0 to 255 or what their type holds of that, as pixels.
    """
    generator = np.random.default_rng(seed)
    dtypes = {value.name: np.dtype(value.dtype) for value in network.inputs}
    made = {name: _random(generator, shape, dtypes[name]) for name, shape in shapes.items()}
    return {**made, **values}


def _random(generator: np.random.Generator, shape: Shape, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    most = 1 if dtype.kind == "b" else min(255, np.iinfo(dtype).max)
    return generator.integers(0, most + 1, shape).astype(dtype)


def _example(extents: Sequence[int | str | None] | None) -> str:
    """A shape of the kind that is wanted: one image, 224 wherever its size is open."""
    given = extents or ("N", 3, None, None)
    return "x".join(str(e if isinstance(e, int) else 224 if i else 1) for i, e in enumerate(given))
