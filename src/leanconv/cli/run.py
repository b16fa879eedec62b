"""`leanconv run MODEL IMAGE…`: what the outputs say, the latency, memory predicted and used."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.api.inputs import bound_by, given_values
from leanconv.cli import EXIT_NOT_MET, EXIT_OK, EXIT_USER_ERROR
from leanconv.cli.image_options import (
    Arrays,
    Given,
    add_image_options,
    fitting_of,
    preprocessing_of,
    read_inputs,
)
from leanconv.cli.images import Picture
from leanconv.cli.network_inputs import stated_for
from leanconv.cli.options import (
    IMAGES_HELP,
    UsageError,
    add_input_options,
    add_load_options,
    add_output_options,
    load_options,
    not_negative,
    positive,
)
from leanconv.cli.output import print_json, progress, say_error, writing_arrays
from leanconv.cli.preprocessing import Preprocessing
from leanconv.cli.run_report import Answer, preprocessing_json, print_answers, summarise
from leanconv.cli.tiled_run import add_tile_options, check_untiled, execute_tiled
from leanconv.cli.times import Startup, started
from leanconv.errors import BudgetError, InputError, ModelError
from leanconv.files import reason
from leanconv.records import cached_property
from leanconv.units import shape_text

if TYPE_CHECKING:
    from leanconv import Network
    from leanconv.api.backend import Footprint

HELP = "run a network on images"
_Keep = Callable[[Arrays], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help=IMAGES_HELP,
    )
    add_load_options(parser)
    add_load_options(parser, ["shared_weights"])
    add_input_options(parser)
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
    parser.add_argument(
        "--draw",
        metavar="FILE",
        help="write the picture with the boxes that a detector found, where its outputs are known "
        "by the names of TensorFlow's or torchvision's detectors, or by Ultralytics' metadata",
    )
    parser.add_argument(
        "--min-score",
        type=not_negative,
        default=0.25,
        metavar="X",
        help="the least score of a box that is drawn (default: 0.25)",
    )
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="say where the time until it was ready and the memory of the process went",
    )
    add_tile_options(parser)
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; 1 if an image cannot be run, 3 if memory is not as predicted."""
    if options.tiled:
        return execute_tiled(options)
    check_untiled(options)
    save = _bundle(options)
    if options.draw:
        from leanconv.cli.drawing import check_drawing

        check_drawing(options.draw, options.images)
    with progress(f"loading {options.model}") as shown, save as keep:
        network, startup = started(options.model, "run", load_options(options))
        network, startup = _for_shape(network, startup, options)
        preprocessing = preprocessing_of(network, options.images, options)
        runs = _Runs(network, startup, preprocessing, options)
        for image in options.images:
            shown.say(f"running {image}")
            runs.add(image, keep)
        if not runs.answers:
            raise runs.nothing()
        _check_labels(runs.answers[0], preprocessing, options)
    answers = runs.answers
    report = {
        "model": options.model,
        **runs.startup.to_json(),
        "startup": runs.startup.text,
        "ready_ns": runs.startup.ready_ns,
        "memory_predicted_bytes": max(answer.memory_predicted_bytes for answer in answers),
        "memory_used_bytes": max(answer.memory_used_bytes for answer in answers),
        "footprint": runs.footprint.to_json(),
        "saved": options.save,
        "drawn": runs.drawn,
        "preprocessing": preprocessing_json(answers, preprocessing, options),
        "images": [answer.to_json() for answer in answers],
        "failed": [{"image": image, "error": str(error)} for image, error in runs.failed.items()],
    }
    if options.json:
        print_json(report)
    else:
        print_answers(answers, report, preprocessing, options, str(runs.footprint))
    for error in runs.failed.values():
        say_error(str(error))
    if runs.failed:
        return EXIT_USER_ERROR
    return EXIT_OK if all(answer.as_predicted for answer in answers) else EXIT_NOT_MET


def _for_shape(
    network: Network, startup: Startup, options: argparse.Namespace
) -> tuple[Network, Startup]:
    planned: list[Network] = []
    values = given_values(network.inputs, options.value)
    startup = startup.planned(lambda: planned.append(stated_for(network, options.shape, values)))
    return planned[0], startup


class _Runs:
    """A network, run on one image after the other; an error of one does not stop the others.

    Attributes:
        startup: how long the network took to answer, so far.
        answers: of the images that could be run.
        failed: the errors of images that could not be run, with their names.
        drawn: the boxes that were drawn, as JSON objects; None where none were wanted.
    """

    def __init__(
        self,
        network: Network,
        startup: Startup,
        preprocessing: Preprocessing,
        options: argparse.Namespace,
    ) -> None:
        self.startup = startup
        self.answers: list[Answer] = []
        self.failed: dict[str, Exception] = {}
        self.drawn: list[dict[str, Any]] | None = None
        self._network, self._preprocessing, self._options = network, preprocessing, options

    @cached_property
    def footprint(self) -> Footprint:
        """The memory of the network and this process, as of the first use of this property."""
        return self._network.footprint()

    def add(self, image: str, keep: _Keep) -> None:
        """Run an image, and keep its outputs.

        Raises:
            UsageError: the command line is wrong, whatever the image holds.
        """
        try:
            given = read_inputs(self._network, image, self._preprocessing, self._options)
            answer, outputs = self._answered(image, given)
            if self._options.draw:
                self._draw(image, given.picture, outputs)
        except UsageError:
            raise
        except OSError as error:
            if error.filename is None or isinstance(error, ImportError):
                raise
            self.failed[image] = InputError(f"{image}: {reason(error)}")
            return
        except (BudgetError, InputError, ModelError) as error:
            named = image in str(error)
            self.failed[image] = error if named else InputError(f"{image}: {error}")
            return
        single = len(self._options.images) == 1
        keep({name if single else f"{image}:{name}": y for name, y in outputs.items()})
        self.answers.append(answer)

    def _answered(self, image: str, given: Given) -> tuple[Answer, Arrays]:
        """Run the network on one file's arrays; return the answer and the outputs themselves."""
        network, options = self._network, self._options
        with _hinting(given.picture, network, options):
            wanted = bound_by(network.inputs, given.arrays)
            self.startup = self.startup.planned(partial(network.prepare, wanted))
            outputs, first_ns, latency_ns = _timed(network, given.arrays, options.repeat)
            self.startup = self.startup.answered(first_ns)
        return Answer(
            image,
            {name: array.shape for name, array in given.arrays.items()},
            given.picture,
            given.notes,
            summarise(outputs, self._preprocessing.labels, options.top),
            latency_ns,
            network.memory_bytes,
            network.used_bytes,
        ), outputs

    def _draw(self, image: str, picture: Picture | None, outputs: Arrays) -> None:
        from leanconv.cli.drawing import draw, found_boxes

        if picture is None:
            raise UsageError(f"--draw takes a picture; got arrays, {image}")
        metadata, least = self._network.metadata, self._options.min_score
        boxes = found_boxes(outputs, metadata, picture, self._preprocessing, least)
        draw(self._options.draw, image, fitting_of(self._options), boxes)
        self.drawn = boxes.to_json()

    def nothing(self) -> Exception:
        """The error where no image could be run: the last one's, after the others were printed."""
        *others, last = self.failed.values()
        for error in others:
            say_error(str(error))
        return last


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
    """Add a hint to the error of an image whose own size does not fit the network's layers."""
    try:
        yield
    except ModelError as error:
        from leanconv.api.stated_shapes import fitting_multiple  # late: it imports what reads files

        shape = network.inputs[0].shape or ()
        if picture is None or options.shape or all(isinstance(e, int) for e in shape[1:]):
            raise
        multiple = fitting_multiple(network.backend.model, [picture.x.shape])
        known = f"try --multiple {multiple}"
        unknown = "many networks take multiples of 32 only; try --multiple 32"
        raise ModelError(
            f"{error} (the network leaves the size of its input open, and was given the image's, "
            f"{shape_text(picture.x.shape)}: {known if multiple else unknown}, or say it with "
            "--shape)"
        ) from error


def _bundle(options: argparse.Namespace) -> AbstractContextManager[_Keep]:
    """Return a context that keeps outputs: in the file of `--save`, or nowhere."""
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
