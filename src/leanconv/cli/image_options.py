"""The samples of commands that run networks: pictures, with options of their own, and arrays."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leanconv.api.inputs import given_values
from leanconv.cli.images import FITS, Fitting, Picture, image_shape, read_image
from leanconv.cli.network_inputs import given_shapes
from leanconv.cli.options import UsageError, positive
from leanconv.cli.preprocessing import (
    LAYOUTS,
    ORDERS,
    PRESETS,
    Normalisation,
    Preprocessing,
    ask,
    read_labels,
)
from leanconv.errors import InputError
from leanconv.quantizer.samples import read_sample
from leanconv.records import dataclass, replace
from leanconv.units import shape_text

if TYPE_CHECKING:
    from leanconv import Network

Arrays = Mapping[str, np.ndarray]
_ARRAY_FILES = (".npy", ".npz")
# What the parser has where an option is not given: arrays would not heed it.
OF_PICTURES = {
    **dict.fromkeys(("preset", "scale", "mean", "std", "channels", "layout", "background")),
    "fit": FITS[0],
    "fill": Fitting.fill,
    "multiple": 1,
}


@dataclass(frozen=True)
class Given:
    """A file's arrays for a network, and what was done to make them.

    Attributes:
        arrays: by the inputs' names.
        picture: where it is one, its place in the input.
        notes: steps taken before, as text for a user.
    """

    arrays: Arrays
    picture: Picture | None
    notes: tuple[str, ...]


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how an image becomes the input, beside the model's metadata."""
    group = parser.add_argument_group(
        "pictures", "how pixels become the input, where the model's metadata do not say so"
    )
    group.add_argument(
        "--preset",
        choices=tuple(PRESETS),
        help="; ".join(f"{name}: {_preset_text(name)}" for name in PRESETS),
    )
    group.add_argument(
        "--scale", type=_ratio, metavar="X", help="multiplies pixels of 0 to 255, such as 1/255"
    )
    group.add_argument(
        "--mean", metavar="X[,X,X]", help="subtracted after that: one number, or one per channel"
    )
    group.add_argument(
        "--std", metavar="X[,X,X]", help="divided by after that: one number, or one per channel"
    )
    group.add_argument("--channels", choices=ORDERS, help="order of the channels (default RGB)")
    group.add_argument("--layout", choices=LAYOUTS, help="order of the axes (default NCHW)")
    group.add_argument(
        "--fit",
        choices=FITS,
        default=FITS[0],
        help="images of another size: stretched to it (default), framed, or cut",
    )
    group.add_argument(
        "--fill", type=_gray, default=Fitting.fill, metavar="0-255", help="gray of the frame (114)"
    )
    group.add_argument(
        "--background",
        type=_gray,
        metavar="0-255",
        help="gray behind transparent parts (default: white; black behind nearly white ink)",
    )
    group.add_argument(
        "--multiple",
        type=positive,
        default=1,
        metavar="N",
        help="where the model leaves the size open, round the image's to multiples, such as 32",
    )


def preprocessing_of(
    network: Network, files: Sequence[str], options: argparse.Namespace
) -> Preprocessing:
    """Return the preprocessing of pictures, by the options, else by the model's metadata.

    Args:
        network: the one whose metadata are read.
        files: the inputs; options of pictures need a picture among them.
        options: of the command line.

    Raises:
        ModelError: the metadata cannot be read.
        UsageError: options cannot be read, exclude each other, or are for pictures where there are
            none.
    """
    _check_pictures(files, options)
    found = Preprocessing.from_metadata(network.metadata)
    preset = PRESETS[options.preset] if options.preset else None
    labels = getattr(options, "labels", None)
    return replace(
        found,
        layout=options.layout or found.layout,
        order=options.channels or (preset.order if preset else found.order),
        normalisation=_normalisation(found.normalisation, options),
        labels=read_labels(labels) if labels else found.labels,
    )


def _check_pictures(files: Sequence[str], options: argparse.Namespace) -> None:
    if any(not _is_array_file(file) for file in files):
        return
    given = [f"--{name}" for name, usual in OF_PICTURES.items() if getattr(options, name) != usual]
    if given:
        held = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
        got = f"only arrays ({held}), which are taken as they are" if files else "no pictures"
        raise UsageError(
            f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for pictures, and there are "
            f"{got}; leave {'it' if len(given) == 1 else 'them'} out"
        )


def _is_array_file(file: str) -> bool:
    return Path(file).suffix.lower() in _ARRAY_FILES


def _normalisation(
    found: Normalisation | None, options: argparse.Namespace
) -> Normalisation | None:
    """The numbers of the options; those of the model where only a part is given."""
    std = _several(options.std, "--std")
    if std and 0.0 in std:
        raise UsageError(f"--std is {options.std}; expected numbers other than 0")
    given = {"scale": options.scale, "mean": _several(options.mean, "--mean"), "std": std}
    given = {name: value for name, value in given.items() if value is not None}
    if options.preset:
        if given:
            raise UsageError(
                f"--preset {options.preset} beside --{', --'.join(given)}; expected one or the "
                f"other: {options.preset} is {PRESETS[options.preset].normalisation.formula}"
            )
        numbers = PRESETS[options.preset].normalisation
        return replace(numbers, source=f"--preset {options.preset}")
    if not given:
        return found
    source = f"--{', --'.join(given)}" + (f"; the rest {found.source}" if found else "")
    return replace(found or Normalisation(1 / 255), **given, source=source)


def fitting_of(options: argparse.Namespace) -> Fitting:
    """Return how pictures of another size are fitted, by the options."""
    multiple = options.multiple
    if multiple == OF_PICTURES["multiple"] and options.preset:
        multiple = PRESETS[options.preset].multiple
    return Fitting(options.fit, options.fill, multiple, options.background)


def read_inputs(
    network: Network, file: str, preprocessing: Preprocessing, options: argparse.Namespace
) -> Given:
    """Read a network's inputs from a file.

    Raises:
        InputError: the file does not fit the network.
        OSError: there is no such file.
        UsageError: nobody says how pixels become numbers.
    """
    values = given_values(network.inputs, options.value)
    if _is_array_file(file):
        sample = read_sample(Path(file), network.inputs, values)
        return Given(sample.arrays, None, sample.notes)
    os.stat(file)  # what is not there comes first: no option mends that
    ports = [port for port in network.inputs if port.name not in values]
    if len(ports) != 1:
        raise InputError(
            f"the network takes {len(ports)} inputs; expected one, an image: give arrays "
            f"as an .npz file with {', '.join(port.name for port in ports)}, or a small integer "
            "input by --value NAME=N"
        )
    (port,) = ports
    shape: tuple[int | str | None, ...] | None = port.shape
    given = given_shapes(network, options.shape).get(port.name)
    if given is not None:
        if given[0] != 1:
            raise InputError(
                f"--shape {shape_text(given)} is for {given[0]} images; expected 1: each image is "
                "run by itself"
            )
        shape = given
    image_shape(shape, preprocessing)
    _refuse_batch(port.name, shape)
    if port.dtype.held != port.dtype:
        raise InputError(
            f"the network takes {port.dtype}, which no image is read as; expected an array of "
            f"codes, {port.dtype.held}, in a .npy file"
        )
    if preprocessing.normalisation is None and np.dtype(port.dtype).kind == "f":
        raise UsageError(ask())
    picture = read_image(file, shape, preprocessing, fitting_of(options), port.dtype)
    return Given({port.name: picture.x, **values}, picture, picture.notes)


def _refuse_batch(name: str, shape: Sequence[int | str | None] | None) -> None:
    """Refuse a picture for an input of which the file fixes several images, and say what helps."""
    count, *rest = shape or (1,)
    if not isinstance(count, int) or count == 1:
        return
    one = shape_text((1, *rest))
    raise InputError(
        f"the file fixes input {name} at {shape_text(shape)}, {count} images; expected 1, since "
        f"each image is run by itself: give --shape {one}, or with a height and width such as "
        "those of the image"
    )


def _preset_text(name: str) -> str:
    preset = PRESETS[name]
    return f"{preset.what} ({preset.normalisation.formula})"


def _ratio(text: str) -> float:
    """Read a number above 0, such as 0.5 or 1/255 (an argparse type)."""
    try:
        number = float(Fraction(text))
    except (ValueError, ZeroDivisionError, OverflowError):
        number = 0.0
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, such as 1/255")
    return number


def _gray(text: str) -> int:
    """Read a gray from 0 to 255 (an argparse type)."""
    if not text.isdecimal() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is no gray; expected an integer, 0 to 255")
    return int(text)


def _several(text: str | None, option: str) -> tuple[float, ...] | None:
    """Read one number, or one for each channel."""
    if text is None:
        return None
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3) or not all(np.isfinite(numbers)):
        raise UsageError(
            f"{option} is {text!r}; expected one number, or one per channel such as 0.5,0.5,0.5"
        )
    return numbers
