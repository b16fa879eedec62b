"""`leanconv compile MODEL -o libnet.so`: a network as a library without Python."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leanconv.cli import EXIT_OK
from leanconv.cli.network_inputs import model_file
from leanconv.cli.options import (
    UsageError,
    add_load_options,
    add_output_options,
    load_options,
    named_range,
    positive,
)
from leanconv.cli.output import print_json, print_text, progress
from leanconv.errors import InputError
from leanconv.files import refuse_without_folder
from leanconv.units import counted, format_bytes

HELP = "write a network as a C library, without Python"
_OPTIONS = (
    "memory_limit",
    "max_error",
    "precision",
    "reproducible",
    "algorithms",
    "stream_weights",
    "dtype",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's options."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="libNAME.so (linked by cc), NAME.a, NAME.o or NAME.wasm; beside it a C header and a "
        "description as JSON are written; or a folder, for net.o with an example in C; or "
        "NAME-VERSION.whl, a package for Python that needs NumPy alone",
    )
    parser.add_argument(
        "--shape",
        action="append",
        type=named_range,
        default=[],
        metavar="[NAME=]NxCxHxW",
        help="input shape, where the model leaves it open; an input given again begins another "
        "set of shapes, each of which has a function of its own, as has each of a range, 32-96/32",
    )
    parser.add_argument(
        "--target",
        default="host",
        metavar="CPU[:SYSTEM]",
        help="the processor that it is for, such as haswell, znver4, armv8-a, wasm32-simd128 "
        "(default: this), and its system: linux (default), android, ios, macos, windows, freebsd, "
        "none, or an LLVM triple; of several, as haswell,znver4, the best one that there is runs",
    )
    parser.add_argument(
        "--weights",
        choices=("packed", "compact", "file"),
        default="packed",
        help="compact: weights that packing makes larger are packed when the library starts; "
        "file: they are in a file beside, which the program maps",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="threads that take part in a run, the caller counted (default 1)",
    )
    parser.add_argument("--plan", metavar="FILE", help="follow the plan that this file holds")
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="prefix of the functions (default: the file's name, net of libnet.so)",
    )
    add_load_options(parser, _OPTIONS)
    add_output_options(parser)


def execute(options: argparse.Namespace) -> int:
    """Run the sub-command."""
    import leanconv

    model = model_file(options.model, "compile")
    refuse_without_folder(options.output)
    if Path(options.output).resolve() == Path(model).resolve():
        raise InputError(f"{options.output!r} is the network itself; expected another file")
    with progress(f"compiling {model}") as shown:

        def told(stage: str, done: int, total: int) -> None:
            shown.say(f"{model}: {stage}", f", {done} of {total}")

        made = leanconv.compile(
            model,
            options.output,
            shapes=_shapes(options.shape),
            target=options.target,
            plan=options.plan,
            weights=options.weights,
            name=options.name,
            progress=told,
            **load_options(options),
        )
    if options.json:
        print_json({**asdict(made), "files": [str(file) for file in made.files]})
        return EXIT_OK
    threads = counted(made.threads, "thread")
    print_text(
        f"{', '.join(map(str, made.files))}: for {', '.join(made.targets)}, {threads}; "
        f"weights {format_bytes(made.weight_bytes)}, arena {format_bytes(made.block_bytes)}",
        options.wide,
    )
    return EXIT_OK


def _shapes(given: list[tuple[str, tuple[int, ...]]]) -> Any:
    """Return shapes as `leanconv.compile` takes them; an input named again begins another set."""
    sets: list[dict[str, tuple[int, ...]]] = []
    for name, shape in given:
        if not sets or name in sets[-1]:
            sets.append({})
        sets[-1][name] = shape
    if any("" in each and len(each) > 1 for each in sets):
        raise UsageError("got several --shape, some without names; expected NAME=NxCxHxW")
    shapes = [each.get("", each) for each in sets]
    return shapes[0] if len(shapes) == 1 else shapes or None
