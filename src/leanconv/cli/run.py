"""`leanconv run MODEL IMAGE…`: the answer, the latency, and memory predicted and used."""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from leanconv.cli.common import add_load_options, load_options, positive
from leanconv.cli.exit_codes import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.images import Preprocessing, read_image
from leanconv.cli.output import print_json, print_table, progress
from leanconv.errors import InputError
from leanconv.units import format_bytes, format_ns


@dataclass(frozen=True)
class Answer:
    """What one image gave.

    Attributes:
        image: the file.
        best: (label, probability) of the most likely classes, the likeliest first.
        latency_ns: median of the repeated runs.
    """

    image: str
    best: tuple[tuple[str, float], ...]
    latency_ns: int


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("run", help="answer images with a network", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="PNG files")
    add_load_options(parser)
    parser.add_argument("--top", type=positive, default=5, metavar="N", help="classes in --json")
    parser.add_argument(
        "--repeat", type=positive, default=20, metavar="N", help="timed runs (default 20)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; 3 if the bytes used are not the bytes predicted."""
    import leanconv

    with progress(f"loading {options.model}") as shown:
        begin = time.perf_counter_ns()
        network = leanconv.load(options.model, **load_options(options))
        if len(network.inputs) != 1:
            raise InputError(
                f"the network takes {len(network.inputs)} inputs; expected one, an image: give "
                "arrays with `leanconv verify`, or from Python"
            )
        preprocessing = Preprocessing.from_metadata(network.metadata)
        load_ns = time.perf_counter_ns() - begin
        answers = []
        for image in options.images:
            shown.say(f"running {image}")
            x = read_image(image, network.inputs[0].shape, preprocessing)
            answers.append(_answer(network, image, x, preprocessing, options))
    predicted, used = network.plan.memory_bytes, network.used_bytes
    report = {
        "model": options.model,
        "load_ns": load_ns,
        "memory_predicted_bytes": predicted,
        "memory_used_bytes": used,
        "images": [
            {
                "image": a.image,
                "latency_ns": a.latency_ns,
                "answers": [{"label": label, "probability": p} for label, p in a.best],
            }
            for a in answers
        ],
    }
    if options.json:
        print_json(report)
    else:
        _print(answers, load_ns, predicted, used, options)
    return EXIT_OK if predicted == used else EXIT_NOT_MET


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Return class probabilities, float64; scores that are none yet go through softmax."""
    flat = scores.astype(np.float64).ravel()
    if not np.all(np.isfinite(flat)):
        raise InputError(
            "the network's output holds NaN or infinity for this image; expected numbers: look at "
            "the model's input_mean and input_std, or try --dtype float64"
        )
    if flat.min() >= 0.0 and abs(flat.sum() - 1.0) < 1e-3:
        return flat
    exponentials = np.exp(flat - flat.max())
    result: np.ndarray = exponentials / exponentials.sum()
    return result


def _answer(
    network: Any, image: str, x: np.ndarray, preprocessing: Preprocessing, options: Any
) -> Answer:
    scores = network(x)
    durations = []
    for _ in range(options.repeat):
        begin = time.perf_counter_ns()
        network(x)
        durations.append(time.perf_counter_ns() - begin)
    chances = probabilities(scores)
    order = np.argsort(-chances, kind="stable")[: options.top]
    best = tuple((preprocessing.label(int(i)), float(chances[i])) for i in order)
    return Answer(image, best, int(statistics.median(durations)))


def _print(
    answers: list[Answer], load_ns: int, predicted: int, used: int, options: argparse.Namespace
) -> None:
    rows = []
    for answer in answers:
        label, probability = answer.best[0]
        others = ", ".join(f"{other} {p:.1%}" for other, p in answer.best[1:3])
        rows.append(
            [answer.image, label, others, f"{probability:.1%}", format_ns(answer.latency_ns)]
        )
    print_table(["image", "answer", "then", "probability", "latency"], rows, left=3)
    print(f"loaded in {format_ns(load_ns)}; latency is the median of {options.repeat} runs")
    verdict = "as predicted" if predicted == used else "NOT as predicted"
    print(
        f"memory predicted {predicted:,} bytes ({format_bytes(predicted)}), "
        f"used {used:,} bytes ({format_bytes(used)}): {verdict}"
    )
