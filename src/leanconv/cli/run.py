"""`leanconv run MODEL IMAGE…`: what the outputs say, the latency, memory predicted and used."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from leanconv.cli.answers import summarise
from leanconv.cli.common import (
    UsageError,
    add_load_options,
    add_output_options,
    add_shape_option,
    load_options,
    positive,
)
from leanconv.cli.exit_codes import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.files import writing_arrays
from leanconv.cli.image_options import (
    Arrays,
    add_image_options,
    preprocessing_of,
    read_inputs,
)
from leanconv.cli.images import Picture
from leanconv.cli.output import print_json, progress
from leanconv.cli.preprocessing import Preprocessing
from leanconv.cli.run_report import Answer, preprocessing_json, print_answers
from leanconv.cli.startup import started
from leanconv.errors import InputError, ModelError
from leanconv.units import shape_text

if TYPE_CHECKING:
    from leanconv import Network


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
    add_image_options(parser)
    parser.add_argument(
        "--labels", metavar="FILE", help="names of the classes, one on each line, or a JSON list"
    )
    parser.add_argument(
        "--top",
        type=positive,
        default=5,
        metavar="N",
        help="how many of the likeliest classes are shown (default: 5)",
    )
    parser.add_argument(
        "--repeat", type=positive, default=20, metavar="N", help="timed runs (default: 20)"
    )
    parser.add_argument(
        "--save",
        metavar="FILE.npz",
        help="write all outputs by their names, IMAGE:NAME where there are several images",
    )
    add_output_options(parser)
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; 3 if the bytes used are not the bytes predicted."""
    save = _bundle(options)
    with progress(f"loading {options.model}") as shown, save as keep:
        network, startup = started(options.model, load_options(options))
        preprocessing = preprocessing_of(network, options)
        answers: list[Answer] = []
        for image in options.images:
            shown.say(f"running {image}")
            arrays, picture = read_inputs(network, image, preprocessing, options)
            with _hinting(picture, network, options):
                sizes = {name: array.shape for name, array in arrays.items()}
                startup = startup.planned(partial(network.bind, sizes))
                outputs, first_ns, latency_ns = _timed(network, arrays, options.repeat)
                startup = startup.answered(first_ns)
            single = len(options.images) == 1
            keep({name if single else f"{image}:{name}": y for name, y in outputs.items()})
            summaries = summarise(outputs, preprocessing.labels, options.top)
            answers.append(Answer(image, sizes, picture, summaries, latency_ns))
        _check_labels(answers[0], preprocessing, options)
    predicted, used = network.plan.memory_bytes, network.used_bytes
    report = {
        "model": options.model,
        **startup.to_json(),
        "startup": startup.text,
        "memory_predicted_bytes": predicted,
        "memory_used_bytes": used,
        "saved": options.save,
        "preprocessing": preprocessing_json(answers, preprocessing, options),
        "images": [answer.to_json() for answer in answers],
    }
    if options.json:
        print_json(report)
    else:
        print_answers(answers, report, preprocessing, options)
    return EXIT_OK if predicted == used else EXIT_NOT_MET


# -- run ---------------------------------------------------------------------------------------
def _timed(
    network: Network, arrays: Arrays, repeats: int
) -> tuple[dict[str, np.ndarray], int, int]:
    """The outputs by name, the time of the first run, and the median of further runs' times."""
    durations: list[int] = []
    outputs: dict[str, np.ndarray] = {}
    for number in range(1 + repeats):
        begin = time.perf_counter_ns()
        found = network.run(arrays)
        durations.append(time.perf_counter_ns() - begin)
        outputs = found if not number else outputs
    first, *others = durations
    return outputs, first, int(statistics.median(others))


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
