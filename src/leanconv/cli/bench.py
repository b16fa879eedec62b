"""`leanconv bench layers|MODEL|PROBLEM`: against every engine that is installed, each in its own
process, in turn; medians and ratios.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

from leanconv.api.inputs import given_values
from leanconv.cli import EXIT_NOT_MET, EXIT_OK
from leanconv.cli.engines import machine, processes
from leanconv.cli.engines.processes import (
    ENGINES,
    GRADIENT_ENGINES,
    Crew,
    Engine,
    EngineError,
)
from leanconv.cli.engines.rounds import INACCURATE, OURS, Effort, Work, measure, ratios
from leanconv.cli.gradients import add_gradient_option, gradient_works
from leanconv.cli.network_inputs import input_shapes, is_problem, random_inputs, read_problem
from leanconv.cli.options import (
    UsageError,
    add_input_options,
    add_load_options,
    add_output_options,
    not_negative,
    positive,
    positive_number,
)
from leanconv.cli.output import json_text, print_json, print_table, print_text, progress, writing
from leanconv.errors import InputError
from leanconv.graph.file_graph import FileNode
from leanconv.graph.onnx_graph import OnnxGraph, named_value
from leanconv.graph.wire import written
from leanconv.reference.direct import convolve
from leanconv.reference.layers import LAYERS
from leanconv.settings import current_settings
from leanconv.spec.conv import ConvSpec
from leanconv.types import FLOAT32
from leanconv.units import format_ns, shape_text

HELP = "compare with the other engines that are installed"
LARGEST_DIFFERENCE = 1e-3
_BUSY_CPUS = 0.1

Document = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument(
        "what",
        metavar="layers|MODEL|PROBLEM",
        help="an ONNX file, a line such as ic64ih56oc64oh54kh3, cv1 to cv12 (the MEC paper's "
        "layers), or `layers`: these twelve",
    )
    parser.add_argument("--batch", type=positive, metavar="N", help="images at once (default: 1)")
    add_gradient_option(parser, "measure, of layers and problems,")
    add_input_options(parser)
    add_measure_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command; 3 if answers differ or the goal is missed."""
    specs = _specs(options)
    if options.gradient and specs is None:
        raise UsageError(
            f"--gradient goes with `layers` or a problem; got the model {options.what}; "
            "leave it out, or give one of these"
        )
    with tempfile.TemporaryDirectory(prefix="leanconv-bench-") as folder:
        if specs is None:
            return compare([_model_work(options)], ENGINES, options)
        if options.gradient:
            works = gradient_works(specs, options.gradient, Path(folder))
            return compare(works, GRADIENT_ENGINES, options)
        return compare(layer_works(specs, Path(folder)), ENGINES, options)


def _specs(options: argparse.Namespace) -> dict[str, ConvSpec] | None:
    """The convolutions that are asked for, by name; None for a model."""
    batch = options.batch or 1
    if options.what == "layers":
        return {name: ConvSpec.parse(problem, batch=batch) for name, problem in LAYERS.items()}
    if is_problem(options.what):
        named = options.what if options.what in LAYERS else ""
        return {named: read_problem(options.what, batch=batch)}
    return None


def layer_works(specs: Mapping[str, ConvSpec], folder: Path, exact: bool = False) -> Iterator[Work]:
    """Yield each convolution as a network of its own, with seeded weights.

    Args:
        specs: by name; without bias, residual or activation, in NCHW.
        folder: where the ONNX files go; each is removed when the next one is requested.
        exact: whether answers are compared with the exact one, which takes long to compute.
    """
    for name, spec in specs.items():
        generator = np.random.default_rng(0)
        weight = generator.standard_normal(spec.weight_shape).astype(spec.dtype)
        file = folder / "layer.onnx"
        file.write_bytes(conv_model(spec, weight))
        x = generator.standard_normal(spec.input_shape).astype(spec.dtype)
        truth = functools.partial(_exact, spec, x, weight) if exact else None
        yield Work(f"{name} {spec}".strip(), file, {"x": x}, truth)
        file.unlink()


def conv_model(spec: ConvSpec, weight: np.ndarray) -> bytes:
    """Return the ONNX file of `y = Conv(x, w)`, for engines that read nothing else.

    Args:
        spec: the convolution, without bias, residual or activation, in NCHW.
        weight: its weights, of `spec.weight_shape` and the spec's dtype.
    """
    assert spec.layout == "NCHW"
    assert weight.shape == spec.weight_shape
    attributes = {
        "kernel_shape": spec.kernel,
        "strides": spec.stride,
        "dilations": spec.dilation,
        "pads": spec.pad_begin + spec.pad_end,
        "group": spec.groups,
    }
    x, y = (
        {name: named_value(name, spec.dtype.onnx, shape)}
        for name, shape in (("x", spec.input_shape), ("y", spec.output_shape))
    )
    return OnnxGraph(
        nodes=[FileNode("Conv", ("x", "w"), ("y",), attributes, "conv")],
        inputs=x,
        outputs=y,
        opsets={"": 13},
        ir_version=8,
        constants={"w": weight},
        inside=(written(2, str(spec).encode()),),
    ).data()


def _exact(spec: ConvSpec, x: np.ndarray, weight: np.ndarray) -> list[np.ndarray]:
    return [convolve(spec, x, weight)]


def _model_work(options: argparse.Namespace) -> Work:
    import leanconv

    file = Path(options.what)
    network = leanconv.load(str(file))
    values = given_values(network.inputs, options.value)
    shapes = input_shapes(network, options.shape, options.batch, values)
    inputs = random_inputs(network, shapes, values=values)
    computed = network.backend.dtype
    if computed != FLOAT32:
        raise InputError(
            f"{file} computes in {computed}; expected float32, in which bench compares: convert "
            "the model to float32"
        )
    texts = ", ".join(shape_text(x.shape) for x in inputs.values())
    return Work(f"{file.stem} {texts}", file, inputs, stated=bool(options.shape))


def add_measure_options(parser: argparse.ArgumentParser, threads: int | None = None) -> None:
    """Add the options that say who is measured and how long.

    Args:
        parser: that takes them.
        threads: where none are given; None is the default of every command.
    """
    usual = Effort()
    parser.add_argument(
        "--engine", action="append", metavar="NAME", help="measure this one only (repeatable)"
    )
    usually = {} if threads is None else {"threads": f"threads (default: {threads})"}
    add_load_options(parser, ["threads"], **usually)
    parser.set_defaults(threads=threads)
    for option, default, text in (
        ("--processes", usual.processes, "how often each engine's process is started anew"),
        ("--rounds", usual.rounds, "turns of each engine in each process"),
        ("--seconds", usual.seconds, "seconds of one turn, after its warm-up"),
        ("--warmup", usual.warmup_seconds, "seconds of the warm-up of each turn"),
    ):
        counts = isinstance(default, int)
        parser.add_argument(
            option,
            type=positive if counts else not_negative,
            default=default,
            metavar="N" if counts else "S",
            help=f"{text} (default: {default})",
        )
    parser.add_argument(
        "--minutes", type=positive_number, metavar="M", help="begin no new case after M minutes"
    )
    parser.add_argument(
        "--python",
        metavar="FILE",
        help="another Python interpreter, in which engines are looked for that this one lacks "
        "(default: LEANCONV_BENCH_PYTHON)",
    )
    parser.add_argument(
        "--goal",
        type=positive_number,
        metavar="X",
        help="exit with 3 where the fastest other engine's time over leanconv's is below X",
    )
    parser.add_argument("--strict", action="store_true", help="refuse to measure on a busy machine")
    parser.add_argument(
        "--wait",
        type=not_negative,
        default=60.0,
        metavar="S",
        help="seconds to wait for a quiet machine (default: 60)",
    )
    add_output_options(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the JSON to a file as well")


def effort(options: argparse.Namespace) -> Effort:
    """Return the effort that the options ask for."""
    from leanconv.runtime.pool import default_threads

    return Effort(
        options.threads or default_threads(),
        options.processes,
        options.rounds,
        options.seconds,
        options.warmup,
    )


def find_engines(
    options: argparse.Namespace, engines: Sequence[Engine]
) -> tuple[list[processes.Installed], dict[str, str]]:
    """Return the engines that the options ask for and that are installed, and who is missing.

    Raises:
        UsageError: an engine is unknown.
    """
    names = [engine.name for engine in engines]
    for name in options.engine or ():
        if name not in names:
            raise UsageError(f"engine {name!r} is not known; expected one of {', '.join(names)}")
    wanted = [e for e in engines if not options.engine or e.name in options.engine]
    other = options.python or current_settings().bench_python
    return processes.find(wanted, processes.interpreters(other))


def compare(
    works: Iterable[Work],
    engines: Sequence[Engine],
    options: argparse.Namespace,
    keep: bool = False,
    close: float | None = None,
) -> int:
    """Measure every piece of work with every engine; print, write, and return the exit code.

    Args:
        works: the pieces of work to measure.
        engines: the engines that may take part.
        options: as `add_measure_options` adds them.
        keep: whether an engine's process takes all the work, one after the other.
        close: by how much answers may differ, as a share of the largest output; None: as far as
            float32 arithmetic may.
    """
    installed, missing = find_engines(options, engines)
    _check_rivals(engines, installed, missing, options)
    most = f"waiting until the machine is quiet, {options.wait:g} s at most (--wait)"
    with progress(most) as shown, Crew(keep) as crew:
        busy = machine.wait_until_quiet(_BUSY_CPUS, options.wait)
        if busy >= _BUSY_CPUS and options.strict:
            raise EngineError(f"{busy:.1f} CPUs are busy with other work; stop it, then measure")
        document: Document = {
            "machine": machine.describe().to_json(),
            "busy_cpus_before": round(busy, 2),
            "effort": asdict(effort(options)),
            "missing": missing,
            "left_out": [],
            "cases": [],
        }
        end = time.monotonic() + 60 * options.minutes if options.minutes else None
        for work in works:
            if end and time.monotonic() > end:
                document["left_out"].append(work.name)
                continue
            outcomes = measure(work, installed, effort(options), shown.say, crew)
            document["cases"].append(
                {
                    "name": work.name,
                    "engines": {outcome.engine: outcome.to_json() for outcome in outcomes},
                    "ratios": ratios(outcomes, INACCURATE if close is None else close),
                }
            )
    document["summary"] = summary(document)
    document["failures"] = failures(
        document, options.goal, LARGEST_DIFFERENCE if close is None else close
    )
    if options.out is not None:
        with writing(options.out) as aside:
            aside.write_text(json_text(document) + "\n", encoding="utf-8")
    if options.json:
        print_json(document)
    else:
        print_document(document, options.wide)
    return EXIT_NOT_MET if document["failures"] else EXIT_OK


def _check_rivals(
    engines: Sequence[Engine],
    installed: Sequence[processes.Installed],
    missing: dict[str, str],
    options: argparse.Namespace,
) -> None:
    """Refuse to compare leanconv with nobody, unless that is what the user named.

    Raises:
        EngineError: no other engine is installed, or one that was named is not.
    """
    named = [name for name in options.engine or () if name in missing]
    others = [each for each in installed if each.engine.name != OURS]
    if (others or OURS in (options.engine or ())) and not named:
        return
    absent = [each for each in engines if each.name in (named or missing)]
    packages = " ".join(each.package or each.name for each in absent)
    reasons = "; ".join(f"{name}: {missing[name]}" for name in named or missing)
    raise EngineError(
        f"there is nobody to compare with ({reasons}): pip install {packages}, beside leanconv or "
        "into another environment whose interpreter --python names; or give --engine "
        f"{OURS} to time {OURS} alone"
    )


def summary(document: Document) -> dict[str, float]:
    """Return mean and least of the ratios to the best other engine, and the share of at least 1."""
    best = [case["ratios"]["best"] for case in document["cases"] if "best" in case["ratios"]]
    if not best:
        return {}
    level = sum(ratio >= 1 for ratio in best) / len(best)
    return {"geometric_mean": geometric_mean(best), "least": min(best), "level_share": level}


def failures(
    document: Document, goal: float | None, close: float = LARGEST_DIFFERENCE
) -> list[str]:
    """Say what is wrong: answers that differ, leanconv without a time, a goal that is missed."""
    found = []
    for case in document["cases"]:
        for name, engine in case["engines"].items():
            if name == OURS and "error" in engine:
                found.append(f"{case['name']}: {engine['error']}")
            difference = engine.get("difference")
            if difference is not None and not difference <= close:
                found.append(f"{case['name']}: {name}'s answer differs by {difference:.1e}")
        best = case["ratios"].get("best")
        if goal is not None and best is not None and best < goal:
            found.append(f"{case['name']}: best/{OURS} is {best:.2f}, the goal is {goal:.2f}")
        if goal is not None and best is None:
            found.append(f"{case['name']}: nobody to compare with, so no goal is reached")
    return found


def print_document(document: Document, wide: bool = False) -> None:
    """Print the medians as a table, then what is wrong or missing."""
    names = list(dict.fromkeys(n for case in document["cases"] for n in case["engines"]))
    others = [name for name in names if name != OURS]
    rows = []
    for case in document["cases"]:
        cells = [case["name"]]
        for name in names:
            engine = case["engines"].get(name, {})
            cells.append(format_ns(engine["median_ns"]) if "median_ns" in engine else "failed")
        cells += [_ratio(case["ratios"].get(name)) for name in [*others, "best"]]
        cells.append(_ratio(_predicted(case)))
        rows.append(cells)
    facts, effort_ = document["machine"], document["effort"]
    print_table(
        ["case", *names, *[f"{name}/ours" for name in [*others, "best"]], "predicted/ours"],
        rows,
        title=f"{facts['cpu']}, {effort_['threads']} threads; medians of "
        f"{effort_['processes']}x{effort_['rounds']} turns; ratios above 1: {OURS} is faster",
        wide=wide,
    )
    total = document["summary"]
    if len(rows) > 1 and total:
        print_text(
            f"best/{OURS}: geometric mean {total['geometric_mean']:.2f}, "
            f"least {total['least']:.2f}, level or above on {total['level_share']:.0%}"
        )
    for case in document["cases"]:
        for name, engine in case["engines"].items():
            if "error" in engine and name != OURS:
                print_text(f"{case['name']}: {engine['error']}")
    if document["left_out"]:
        print_text(f"no time left for {len(document['left_out'])} more")
    for name, reason in document["missing"].items():
        print_text(f"{name}: {reason}")
    if document["busy_cpus_before"] >= _BUSY_CPUS:
        print_text(
            f"warning: {document['busy_cpus_before']} CPUs were busy with other work at the start"
        )
    for failure in document["failures"]:
        print_text(f"failed: {failure}")


def _predicted(case: Document) -> float | None:
    """Return leanconv's predicted time over the measured one; None where either is unknown."""
    ours = case["engines"].get(OURS, {})
    known = "predicted_ns" in ours and "median_ns" in ours
    return ours["predicted_ns"] / ours["median_ns"] if known else None


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
