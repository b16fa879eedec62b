"""`leanconv quantize MODEL SAMPLES -o FILE`: a file of 8-bit integers from a float32 network."""

from __future__ import annotations

import argparse
import logging
import os
import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanconv.cli import EXIT_OK
from leanconv.cli.image_options import Arrays, add_image_options, preprocessing_of, read_inputs
from leanconv.cli.network_inputs import model_file
from leanconv.cli.options import (
    IMAGES_HELP,
    UsageError,
    add_input_options,
    add_load_options,
    add_output_options,
    not_negative,
)
from leanconv.cli.output import print_json, print_table, print_text, progress, writing
from leanconv.cli.quantize_page import (
    layer_counts,
    notes,
    quantize_page,
    shown_error,
    shown_time,
)
from leanconv.cli.table import NONE, Column
from leanconv.errors import InputError
from leanconv.files import open_regular, refuse_without_folder
from leanconv.quantizer.codes import METHODS
from leanconv.quantizer.result import RUNS_ON
from leanconv.units import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from leanconv import Network
    from leanconv.quantizer.result import Quantized
    from leanconv.quantizer.samples import Samples

_MOST_LABELS = 1 << 30  # bytes of a file of labels
HELP = "make 8-bit integers of a float32 network"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, opset 11 or later")
    parser.add_argument(
        "samples",
        metavar="SAMPLES",
        nargs="+",
        help=f"inputs as they will come, some tens at least: {IMAGES_HELP}, or folders of them; "
        "every other one is kept to verify",
    )
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    parser.add_argument(
        "--ranges",
        choices=tuple(METHODS),
        default="mse",
        help="how the range of a value's codes is chosen (default mse: the least squared error)",
    )
    parser.add_argument(
        "--max-accuracy-drop",
        type=not_negative,
        metavar="X",
        help="by how many percent the score may be below that of float32, such as 0.5; layers that "
        "have to stay in float32 or float16, stay (default: all are int8)",
    )
    parser.add_argument(
        "--for",
        dest="runs_on",
        choices=RUNS_ON,
        default=RUNS_ON[0],
        help="any: other engines answer the same on every CPU (default); vnni: weights of all 8 "
        "bits, whose sums saturate in other engines on x86 CPUs without VNNI, not in leanconv",
    )
    add_load_options(
        parser,
        ["memory_limit"],
        memory_limit="the most that the file's weights and activations may take when leanconv "
        "runs it",
    )
    parser.add_argument(
        "--labels",
        dest="classes",
        metavar="FILE.npy",
        help="the right class of each image, in their order",
    )
    parser.add_argument(
        "--metric",
        metavar="FILE.py",
        help="a script with a function score(outputs, float32_outputs, inputs), each arrays by "
        "name, that gives a number: the larger, the better",
    )
    parser.add_argument("--html", metavar="FILE", help="write a report as a page, with pictures")
    add_load_options(parser, ["threads"])
    add_input_options(parser)
    add_image_options(parser)
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    import leanconv

    model = model_file(options.model, "quantize")
    if options.classes and options.metric:
        raise UsageError("got --labels together with --metric; expected one of them")
    _refuse_outputs(model, options)
    with progress(f"quantising {model}") as shown, _warnings_unlogged():

        def told(stage: str, done: int, total: int) -> None:
            shown.say(f"{model}: {stage}", f", {done} of {total}")

        samples = _samples(leanconv.load(model, threads=options.threads), options)
        made = leanconv.quantize(
            model,
            samples,
            ranges=options.ranges,
            max_accuracy_drop=options.max_accuracy_drop,
            runs_on=options.runs_on,
            memory_limit=options.memory_limit,
            labels=_labels(options.classes),
            metric=_metric(options.metric),
            threads=options.threads,
            progress=told,
        )
        with writing(options.output) as aside:
            aside.write_bytes(made.data)
        if options.html:
            page = quantize_page(f"{Path(model).name} in 8-bit integers", made)
            with writing(options.html) as aside:
                aside.write_text(page, encoding="utf-8")
    if options.json:
        print_json({"model": model, "output": options.output, **_report(made)})
    else:
        print_table(*_table(made), wide=options.wide)
        print_text("\n" + _summary(made, options.output, len(samples)), options.wide)
    return EXIT_OK


@contextmanager
def _warnings_unlogged() -> Iterator[None]:
    """Log no warnings about the file made: the report has them."""
    logger = logging.getLogger("leanconv.quantizer.quantize")

    def other(record: logging.LogRecord) -> bool:
        return record.levelno != logging.WARNING

    logger.addFilter(other)
    try:
        yield
    finally:
        logger.removeFilter(other)


def _table(made: Quantized) -> tuple[list[Column], list[list[str]]]:
    """The layers; columns in which nothing is known are left out."""
    errors = [shown_error(each.sensitivity) for each in made.layers]
    columns = [
        (Column("layer", "name"), [each.name for each in made.layers]),
        (Column("operation", "name"), [each.op for each in made.layers]),
        (Column("parameters"), [str(each.weights) for each in made.layers]),
        (Column("precision"), [each.precision for each in made.layers]),
        (Column("error alone", optional=1), errors),
        (Column("time", optional=2), [shown_time(each.time_ns) for each in made.layers]),
    ]
    known = [(column, cells) for column, cells in columns if set(cells) != {NONE}]
    rows = zip(*(cells for _, cells in known), strict=True)
    return [column for column, _ in known], [list(row) for row in rows]


def _refuse_outputs(model: str, options: argparse.Namespace) -> None:
    """Refuse files that cannot be written, or must not be, before any work is done."""
    for file in filter(None, (options.output, options.html)):
        refuse_without_folder(file)
        if os.path.realpath(file) == os.path.realpath(model):
            raise InputError(
                f"{file!r} is the float32 network itself; expected another file to write: there "
                "is no way back from a quantised one"
            )


def _report(made: Quantized) -> dict[str, Any]:
    return {
        "bytes": len(made.data),
        "score_name": made.score_name,
        "score": made.score,
        "float_score": made.float_score,
        "error": made.error,
        "calibrated_on": made.samples[0],
        "verified_on": made.samples[1],
        "time_ns": made.time_ns,
        "float_ns": made.float_ns,
        "runs_on": made.runs_on,
        "elsewhere": None if made.elsewhere is None else dict(vars(made.elsewhere)),
        "warnings": made.warnings,
        "layers": [dict(vars(each)) for each in made.layers],
        "trials": [dict(vars(each)) for each in made.trials],
    }


def _summary(made: Quantized, output: str, samples: int) -> str:
    beside = "" if made.score_name == "agreement" else f" (float32: {made.float_score:.2%})"
    verified = "the only sample, on which it was calibrated too"
    if samples > 1:
        were = "was" if made.samples[1] == 1 else "were"
        verified = f"{counted(made.samples[1], 'sample')} that {were} kept to verify"
    taken = "" if made.time_ns is None else f", {format_ns(made.time_ns)} a run"
    return (
        f"{layer_counts(made)}; {made.score_name} {made.score:.2%}{beside}, "
        f"error of the outputs {made.error:.2e}, on {verified}\n"
        f"{output}: {format_bytes(len(made.data))}{taken} (float32: {format_ns(made.float_ns)})"
        + "".join(f"\n{note}" for note in notes(made))
    )


# -- samples -----------------------------------------------------------------------------------
def _samples(network: Network, options: argparse.Namespace) -> Samples:
    """The samples, each read when it is needed."""
    from leanconv.quantizer.samples import Samples, taken_apart

    files = list(_files(options.samples))
    preprocessing = preprocessing_of(network, files, options)

    def reader(file: str) -> Callable[[], Arrays]:
        return lambda: read_inputs(network, file, preprocessing, options).arrays

    readers = [reader(file) for file in files]
    return Samples(tuple(taken_apart(readers, network.inputs)))


def _files(given: Sequence[str]) -> Iterator[str]:
    for each in given:
        path = Path(each)
        if not path.is_dir():
            yield each
            continue
        found = sorted(str(p) for p in path.iterdir() if p.is_file() and p.name[0] != ".")
        if not found:
            raise InputError(f"folder {each!r} holds no files; expected samples")
        yield from found


def _labels(file: str | None) -> np.ndarray | None:
    if file is None:
        return None
    try:
        with open_regular(file, _MOST_LABELS, what="labels") as opened:
            found: np.ndarray = np.load(opened, allow_pickle=False)
    except InputError:
        raise
    except Exception as error:  # NumPy raises whatever a damaged file leads to
        raise InputError(
            f"labels {file!r} cannot be read ({error}); expected a .npy file of whole numbers, "
            "written with np.save"
        ) from error
    return found


def _metric(file: str | None) -> Callable[..., float] | None:
    if file is None:
        return None
    if not Path(file).is_file():
        raise InputError(f"metric {file!r} is no file; expected a Python script")
    try:
        found: Callable[..., float] | None = runpy.run_path(file).get("score")
    except Exception as error:
        raise InputError(
            f"metric {file!r} failed with {type(error).__name__}: {error}; expected a script that "
            "defines score(outputs, float32_outputs, inputs)"
        ) from error
    if not callable(found):
        raise InputError(
            f"metric {file!r} defines no function score; expected score(outputs, "
            "float32_outputs, inputs)"
        )
    return found
