"""`leanconv run MODEL IMAGE…`: what the outputs say, the latency, memory predicted and used."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.cli.answers import summarise
from leanconv.cli.common import (
    UsageError,
    add_load_options,
    add_output_options,
    add_shape_option,
    given_shapes,
    load_options,
    positive,
)
from leanconv.cli.exit_codes import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.files import writing_arrays
from leanconv.cli.images import FITS, Fitting, Picture, Preprocessing, read_image, read_labels
from leanconv.cli.output import print_json, progress
from leanconv.cli.run_report import Answer, print_answers
from leanconv.cli.verify import read_sample
from leanconv.errors import InputError, ModelError
from leanconv.units import shape_text

if TYPE_CHECKING:
    from leanconv import Network

Arrays = Mapping[str, np.ndarray]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("run", help="run a network on images", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="PNG files, or arrays: .npy (of a single input) or .npz (by the inputs' names)",
    )
    add_load_options(parser)
    add_shape_option(parser)
    _add_image_options(parser)
    parser.add_argument(
        "--labels", metavar="FILE", help="names of the classes, one on each line, or a JSON list"
    )
    parser.add_argument("--top", type=positive, default=5, metavar="N", help="classes in --json")
    parser.add_argument(
        "--repeat", type=positive, default=20, metavar="N", help="timed runs (default 20)"
    )
    parser.add_argument(
        "--save",
        metavar="FILE.npz",
        help="write all outputs by their names, IMAGE:NAME where there are several images",
    )
    add_output_options(parser)
    parser.set_defaults(execute=execute)


def _add_image_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how an image becomes the input, beside the model's metadata."""
    parser.add_argument(
        "--fit",
        choices=FITS,
        default="stretch",
        help="images of another size: stretched to it (default), framed, or cut",
    )
    parser.add_argument(
        "--fill", type=_gray, default=Fitting.fill, metavar="0…255", help="gray of the frame (114)"
    )
    parser.add_argument(
        "--multiple",
        type=positive,
        default=1,
        metavar="N",
        help="where the model leaves the size open, round the image's to multiples, such as 32",
    )
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), help="order of the input's axes")
    parser.add_argument(
        "--scale", type=_ratio, metavar="X", help="multiplies pixels of 0 to 255, such as 1/255"
    )
    parser.add_argument(
        "--mean", metavar="X[,X,X]", help="subtracted after that: one number, or three"
    )
    parser.add_argument(
        "--std", metavar="X[,X,X]", help="divided by after that: one number, or three"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; 3 if the bytes used are not the bytes predicted."""
    import leanconv

    save = _bundle(options)
    with progress(f"loading {options.model}") as shown, save as keep:
        begin = time.perf_counter_ns()
        network = leanconv.load(options.model, **load_options(options))
        preprocessing = _preprocessing(network, options)
        load_ns = time.perf_counter_ns() - begin
        answers = []
        for image in options.images:
            shown.say(f"running {image}")
            arrays, picture = _inputs(network, image, preprocessing, options)
            with _hinting(picture, network, options):
                outputs, latency_ns = _timed(network, arrays, options.repeat)
            single = len(options.images) == 1
            keep({name if single else f"{image}:{name}": y for name, y in outputs.items()})
            summaries = summarise(outputs, preprocessing.labels, options.top)
            shapes = {name: array.shape for name, array in arrays.items()}
            answers.append(Answer(image, shapes, picture, summaries, latency_ns))
        _check_labels(answers[0], preprocessing, options)
    predicted, used = network.plan.memory_bytes, network.used_bytes
    report = {
        "model": options.model,
        "load_ns": load_ns,
        "memory_predicted_bytes": predicted,
        "memory_used_bytes": used,
        "saved": options.save,
        "images": [answer.to_json() for answer in answers],
    }
    if options.json:
        print_json(report)
    else:
        print_answers(answers, report, options)
    return EXIT_OK if predicted == used else EXIT_NOT_MET


# -- in ----------------------------------------------------------------------------------------
def _preprocessing(network: Network, options: argparse.Namespace) -> Preprocessing:
    """What the model's metadata say of images, and the options instead of it."""
    changes: dict[str, Any] = {
        "layout": options.layout,
        "scale": options.scale,
        "mean": _several(options.mean, "--mean"),
        "std": _several(options.std, "--std"),
        "labels": read_labels(options.labels) if options.labels else None,
    }
    if changes["std"] and 0.0 in changes["std"]:
        raise UsageError(f"--std is {options.std}; expected numbers other than 0")
    found = Preprocessing.from_metadata(network.metadata)
    return replace(found, **{name: v for name, v in changes.items() if v is not None})


def _inputs(
    network: Network, image: str, preprocessing: Preprocessing, options: argparse.Namespace
) -> tuple[Arrays, Picture | None]:
    """The arrays that a file gives the network, and the picture where it is one."""
    if Path(image).suffix.lower() in (".npy", ".npz"):
        return read_sample(Path(image), network), None
    if len(network.inputs) != 1:
        raise InputError(
            f"the network takes {len(network.inputs)} inputs; expected one, an image: give arrays "
            f"as an .npz file with {', '.join(port.name for port in network.inputs)}"
        )
    (port,) = network.inputs
    shape: tuple[int | str | None, ...] | None = port.shape
    given = given_shapes(network, options.shape).get(port.name)
    if given is not None:
        if given[0] != 1:
            raise InputError(
                f"--shape {shape_text(given)} is for {given[0]} images; expected 1: each image is "
                "run by itself"
            )
        shape = given
    fitting = Fitting(options.fit, options.fill, options.multiple)
    picture = read_image(image, shape, preprocessing, fitting)
    return {port.name: picture.x}, picture


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
        raise UsageError(f"{option} is {text!r}; expected one number, or three such as 0.5,0.5,0.5")
    return numbers


# -- run ---------------------------------------------------------------------------------------
def _timed(network: Network, arrays: Arrays, repeats: int) -> tuple[dict[str, np.ndarray], int]:
    """The outputs by name, and the median of the times of further runs."""
    outputs = network.run(arrays)
    durations = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        network.run(arrays)
        durations.append(time.perf_counter_ns() - begin)
    return outputs, int(statistics.median(durations))


@contextmanager
def _hinting(
    picture: Picture | None, network: Network, options: argparse.Namespace
) -> Iterator[None]:
    """Where an image's own size was taken and does not fit the network's layers, say so."""
    try:
        yield
    except ModelError as error:
        shape = network.inputs[0].shape or ()
        if picture is None or options.shape or all(isinstance(e, int) for e in shape[1:]):
            raise
        raise ModelError(
            f"{error} (the network leaves the size of its input open, and was given the image's, "
            f"{shape_text(picture.x.shape)}: many networks take multiples of 32 only; try "
            "--multiple 32, or say it with --shape)"
        ) from error


def _bundle(options: argparse.Namespace) -> AbstractContextManager[Callable[[Arrays], None]]:
    """Where outputs are kept: the file of `--save`, or nowhere."""
    if options.save is None:
        return nullcontext(lambda _: None)
    if Path(options.save).suffix.lower() != ".npz":
        raise UsageError(f"--save is {options.save!r}; expected a file that ends in .npz")
    return writing_arrays(options.save)


def _check_labels(
    answer: Answer, preprocessing: Preprocessing, options: argparse.Namespace
) -> None:
    """Labels that the user gave must be of something; those of the model may be of boxes."""
    if options.labels and not any(s.because == "labels" for s in answer.outputs):
        shapes = ", ".join(f"{s.name} {shape_text(s.shape)}" for s in answer.outputs)
        raise InputError(
            f"--labels {options.labels} holds {len(preprocessing.labels)} names, and no output has "
            f"a value for each: {shapes}; give as many names as there are classes, or none"
        )
