"""A network as a compiled library, beside `leanconv.load` and onnxruntime, each in a process.

    python benchmarks/library.py --record library
    python benchmarks/library.py mobilenetv2_int8    which benchmarks/quantised.py has made
    python benchmarks/library.py FILE.onnx --shape 1x3x224x224 --threads 2 --weights compact

The library is linked to a C program, once as a shared library and once statically. Processes are
started in turn. Up to the first answer counts all from the start of the process on, Python's and
the imports' time where there are any; inputs are read from a file. A run is the median of those
that follow. The peak of resident memory is the process's own (`VmHWM`). Code is what `size` counts
of sections `.text`, that of C's library left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import leanconv
from harness import ROOT, add_record_option, effort, model_file, script
from leanconv.cli.engines import machine
from leanconv.cli.options import named_shape, positive
from leanconv.cli.output import print_table, progress
from leanconv.errors import InputError
from leanconv.units import format_bytes, format_ns

SHARED, STATIC, LOADED, OTHER = "shared library", "static program", "leanconv.load", "onnxruntime"
ENGINES = ROOT / "benchmarks" / "engines"


def built(model: Path, options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Compile and link both programs; returns what is known of each before it runs."""
    shapes, made = dict(options.shape), {}
    for name, out in ((SHARED, "libnet.so"), (STATIC, "net.o")):
        file = leanconv.compile(
            model,
            folder / out,
            name="net",
            shapes=shapes.get("", shapes) or None,
            threads=options.threads,
            weights=options.weights,
        ).files[0]
        facts = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        run, program = facts["runs"][0], folder / name.replace(" ", "_")
        values = [*run["inputs"], *run["outputs"]]
        defined = {
            "HEADER": f'"{file.with_suffix(".h")}"',
            "RUN": run["function"],
            "IN": len(run["inputs"]),
            "SIZES": ",".join(str(each["bytes"]) for each in values),
        }
        output_of(
            *("cc", "-O2", "-std=c11", *(f"-D{key}={text}" for key, text in defined.items())),
            *("-o", program, ENGINES / "run_library.c", file, "-lpthread"),
            "-static" if name == STATIC else f"-Wl,-rpath,{folder}",
        )
        measured = program if name == STATIC else file
        lines = output_of("size", "-A", file).splitlines()
        sections = [line.split() for line in lines if line.startswith(".text")]
        made[name] = {
            "program": str(program),
            "file_bytes": measured.stat().st_size,
            "code_bytes": sum(int(size) for _, size, _ in sections),
            "facts": facts,
        }
    return made


def output_of(*command: str | Path) -> str:
    """Run a command and return what it prints.

    Raises:
        InputError: the command is not there, or fails.
    """
    try:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    except FileNotFoundError as error:
        raise InputError(f"{command[0]!r} is not there: expected C's tools") from error
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip()[-500:]
        raise InputError(f"{command[0]} ends with {error.returncode}: {said}") from error
    return done.stdout


def started(*command: str | Path) -> dict[str, float]:
    """Start a process; returns what it measured."""
    begin = time.monotonic_ns()
    first, *runs, peak = output_of(*command).splitlines()
    return {
        "first_ns": int(first) - begin,
        "run_ns": statistics.median(map(int, runs)),
        "peak_bytes": int(peak.split()[1]) * 1024,
    }


def written(values: list[dict[str, Any]], folder: Path) -> tuple[Path, Path]:
    """Write random inputs, one after the other and as arrays by name; whole ones are 0 and 1."""
    random, feed = np.random.default_rng(0), dict[str, Any]()
    for each in values:
        numbers = random.standard_normal(each["shape"])
        whole = np.dtype(each["dtype"]).kind in "iub"
        feed[each["name"]] = (numbers > 0 if whole else numbers).astype(each["dtype"])
    inputs, arrays = folder / "inputs.raw", folder / "inputs.npz"
    inputs.write_bytes(b"".join(array.tobytes() for array in feed.values()))
    np.savez(arrays, **feed)
    return inputs, arrays


def measure(model: Path, options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """Return by engine what was measured, and whether its answers have the bits of `load`."""
    with progress("measuring") as shown:
        shown.say("compiling")
        results = built(model, options, folder)
        facts = results[SHARED].pop("facts")
        results[STATIC].pop("facts")
        inputs, arrays = written(facts["runs"][0]["inputs"], folder)
        commands: dict[str, list[str | Path]] = {
            name: [made.pop("program"), inputs] for name, made in results.items()
        }
        engines = [LOADED, *([OTHER] if importlib.util.find_spec(OTHER) else [])]
        for name in engines:
            commands[name] = [sys.executable, ENGINES / "run_network.py", name, model, arrays]
        ends = {name: [] if name in results else [str(options.threads)] for name in commands}
        answers, taken = {}, dict[str, list[dict[str, float]]]()
        for number in range(options.rounds + 1):  # the first one fills caches
            for name, command in commands.items():
                shown.say(f"{name}, process {number} of {options.rounds}")
                out = folder / "outputs.raw"
                found = started(*command, out, str(options.runs if number else 1), *ends[name])
                answers[name] = out.read_bytes()
                if number:
                    taken.setdefault(name, []).append(found)
    for name, processes in taken.items():
        results.setdefault(name, {})["processes"] = processes
        for key in ("first_ns", "run_ns", "peak_bytes"):
            results[name][key] = statistics.median(each[key] for each in processes)
        results[name]["bits_of_load"] = answers[name] == answers[LOADED]
    for name in (SHARED, STATIC):
        results[name] |= {key: facts[key] for key in ("weight_bytes", "block_bytes")}
    return results


def main() -> int:
    """Measure; 3 if a library's answers have other bits than those of `load`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("network", nargs="?", default="mobilenetv2", help="a name, or an ONNX file")
    parser.add_argument(
        "--shape", type=named_shape, action="append", default=[], metavar="[NAME=]SHAPE"
    )
    parser.add_argument("--threads", type=positive, default=1, metavar="N")
    parser.add_argument("--weights", choices=("packed", "compact"), default="packed")
    parser.add_argument("--runs", type=positive, default=50, metavar="N", help="of each process")
    parser.add_argument("--rounds", type=positive, default=5, metavar="N", help="processes of each")
    parser.add_argument("--wait", type=float, default=60, metavar="S", help="for a quiet machine")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON")
    add_record_option(parser)
    options = parser.parse_args()
    if sys.platform != "linux":
        raise InputError("a process's peak of memory is read from /proc: expected Linux")
    model = Path(options.network)
    model = model if model.suffix == ".onnx" else model_file(options.network)
    busy = machine.wait_until_quiet(patience_s=options.wait)
    with tempfile.TemporaryDirectory(prefix="leanconv-library-") as folder:
        results = measure(model.resolve(), options, Path(folder))
    document = {
        "machine": machine.describe().to_json(),
        "busy_cpus_before": round(busy, 2),
        "network": options.network,
        "weights": options.weights,
        "effort": effort(options, "threads", "runs", "rounds"),
        "results": results,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print_table(
        ["", "file", "code", "peak memory", "to the first answer", "run", "of load's", "bits"],
        [
            [
                name,
                *(
                    format_bytes(each[k]) if k in each else "-"
                    for k in ("file_bytes", "code_bytes")
                ),
                format_bytes(int(each["peak_bytes"])),
                format_ns(each["first_ns"]),
                format_ns(each["run_ns"]),
                f"{each['run_ns'] / results[LOADED]['run_ns']:.2f}",
                "equal" if each["bits_of_load"] else "others",
            ]
            for name, each in results.items()
        ],
        title=f"{options.network}, {options.weights} weights, threads: {options.threads}; "
        f"weights {format_bytes(results[SHARED]['weight_bytes'])}, "
        f"arena {format_bytes(results[SHARED]['block_bytes'])}",
    )
    return 0 if all(results[name]["bits_of_load"] for name in (SHARED, STATIC)) else 3


if __name__ == "__main__":
    script(main)
