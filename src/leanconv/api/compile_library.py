"""`leanconv.compile`: a planned network as an object or a library, without Python.

What is planned is what `load` plans, for fixed shapes: the same kernels, places and packed weights,
so that the answers have the same bits. All of it is one object file, which LLVM makes for any
target: code, tables, weights, and the functions of a small C interface (`library_files`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.library_files import header, members, summary
from leanconv.api.load import model_source
from leanconv.api.options import NetworkOptions
from leanconv.api.stated_shapes import with_shapes
from leanconv.codegen.machine_code import linked_object
from leanconv.errors import InputError, SpecError, memory_reported
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.onnx_tensor import GivenWeights
from leanconv.planner.compiled_network import PortableNetwork
from leanconv.planner.network_plan import NetworkPlan
from leanconv.progress import Progress, checked_progress, step, working
from leanconv.records import dataclass
from leanconv.runtime import native
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.static_program import StaticProgram, static_program
from leanconv.runtime.static_text import description_text
from leanconv.target import Target, preset

_KINDS = {".o": "object", ".a": "archive", ".so": "library", ".dylib": "library"}


@dataclass(frozen=True)
class CompiledLibrary:
    """What `compile` wrote.

    Attributes:
        files: the object, archive or library first, then the header and the description.
        block_bytes: of the memory that the caller gives, `NAME_arena_bytes()`.
        weight_bytes: of packed weights, in the file.
        target: the processor that it is for.
        predicted_error: as of a plan; None where it states none.
    """

    files: tuple[Path, ...]
    block_bytes: int
    weight_bytes: int
    target: str
    predicted_error: float | None


@memory_reported("compiling a network")
def compile(  # noqa: A001 - the public name
    model: str | os.PathLike[str] | bytes | Any,
    out: str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
    target: str = "host",
    threads: int = 1,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    reproducible: bool = False,
    algorithms: Mapping[str, str] | None = None,
    precision: str | None = None,
    weights: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> CompiledLibrary:
    """Write a network as an object or a library that needs no Python.

    Beside `out` a C header of the same name (`.h`) declares its functions, and a `.json` says what
    it takes, gives and needs. The functions allocate nothing and write to no memory but what the
    caller gives: `NAME_init` prepares a block of `NAME_arena_bytes()`, `NAME_run` runs in it.

    Args:
        model, memory_limit, max_error, reproducible, algorithms, precision, weights, progress: as
            for `load`.
        out: `.o` (an object), `.a` (an archive) or `.so` (a shared library, linked by `cc`).
        shapes: those of the inputs that the file leaves open, by name, or that of the only input.
        target: the processor that it is for: "host", or a name as `haswell`, `znver4`,
            `skylake-avx512`, `neoverse-n1`. Matrix tiles (AMX) are not used: a process has to ask
            for them.
        threads: that take part in a run, the caller counted. Workers are POSIX threads.
        name: the prefix of the functions; None for the file's, so that `libnet.so` has `net_run`.

    Raises:
        InputError, ModelError, BudgetError: as for `load`.
        UnsupportedError: something of the network is computed by NumPy when values are known.
        SpecError: an option makes no sense.
    """
    path = Path(out)
    if path.suffix not in _KINDS:
        raise SpecError(f"got out={str(path)!r}; expected a name that ends in {', '.join(_KINDS)}")
    prefix = path.stem.removeprefix("lib") if name is None else name
    if not (prefix.isidentifier() and prefix.isascii()):
        raise SpecError(f"got name {prefix!r}; expected a C identifier: give name=, or --name")
    options = NetworkOptions.checked(
        threads=threads,
        memory_limit=memory_limit,
        max_error=max_error,
        reproducible=reproducible,
        algorithms=algorithms,
        precision=precision,
    )
    checked_progress(progress)
    source, made_for = model_source(model), _target(target)
    shown = source.name if isinstance(source, Path) else f"a model of {len(source)} bytes"
    with working(shown, progress):
        step("reading", 0, 1)
        read = read_model(source, weights=GivenWeights.checked(weights))
        step("reading", 1, 1)
        stated = read if shapes is None else with_shapes(read, shapes)[0]
        backend = CpuBackend(stated, options, target=made_for)
        network = backend.portable(_fixed(stated))
        made = static_program(network.program, network.symbols, prefix, made_for)
        facts = summary(prefix, network.plan, made.block_bytes, network.constants.bytes)
        body = _object(network, made, facts)
    return _written(path, facts, body, network.plan)


def _target(name: str) -> Target:
    found = planning_target() if name == "host" else preset(name)
    return replace(
        found, extensions=tuple(each for each in found.extensions if not each.startswith("amx_"))
    )


def _fixed(model: Model) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of all inputs; a batch that is open is 1.

    Raises:
        SpecError: another extent is open.
    """
    shapes = []
    for each in model.inputs:
        first, *rest = each.shape or (None,)
        extents = [1 if rest and not isinstance(first, int) else first, *rest]
        numbers = tuple(extent for extent in extents if isinstance(extent, int))
        if each.shape is None or (each.shape and len(numbers) < len(extents)):
            text = "any" if each.shape is None else "x".join(map(str, each.shape))
            raise SpecError(
                f"input {each.name!r} has the shape {text}, which the file leaves open; expected "
                f"numbers: give shapes={{{each.name!r}: (...)}}, or --shape"
            )
        shapes.append(numbers)
    return tuple(shapes)


def _object(network: PortableNetwork, made: StaticProgram, facts: Mapping[str, Any]) -> bytearray:
    """Return the object file of a network, with its constants and its description in it."""
    target = network.plan.target
    step("compiling", 0, 1)
    about = description_text(facts["name"], json.dumps(facts))
    runtime = native.runtime_text(native.arch_of(target.triple))
    texts = [made.text, about, runtime, *network.texts]
    body = bytearray(linked_object(texts, made.names, target))
    step("compiling", 1, 1)
    begin = body.index(made.mark)
    assert body.find(made.mark, begin + 1) < 0, "the mark of constants is there once"
    size = network.constants.bytes
    body[begin : begin + size] = network.constants.view(0, size).data
    return body


def _written(
    path: Path, facts: Mapping[str, Any], body: bytearray, plan: NetworkPlan
) -> CompiledLibrary:
    """Write all files, each whole or not at all."""
    name, block_bytes, weight_bytes = facts["name"], facts["block_bytes"], facts["weight_bytes"]
    inputs, outputs = members(plan.inputs, "input"), members(plan.results, "output")
    texts = {
        path.with_suffix(".h"): header(name, facts, inputs, outputs),
        path.with_suffix(".json"): json.dumps(facts, indent=1) + "\n",
    }
    try:
        with tempfile.TemporaryDirectory(prefix=".leanconv-", dir=path.parent) as folder:
            ready = Path(folder) / f"ready{path.suffix}"
            file = Path(folder) / f"{name}.o"
            file.write_bytes(body)
            _packed(file, ready)
            for place, text in texts.items():
                (Path(folder) / place.name).write_text(text, encoding="utf-8")
            for place in texts:
                os.replace(Path(folder) / place.name, place)
            os.replace(ready, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    files = (path, *texts)
    return CompiledLibrary(files, block_bytes, weight_bytes, plan.target.name, plan.predicted_error)


def _packed(file: Path, ready: Path) -> None:
    """Make what the suffix says of an object.

    Raises:
        InputError: the tool for that is not there, or fails.
    """
    if ready.suffix == ".o":
        os.replace(file, ready)
        return
    tool = "ar" if ready.suffix == ".a" else "cc"
    found = shutil.which(tool)
    if found is None:
        raise InputError(f"{tool!r} is not there to make a {ready.suffix} file; write a .o file")
    options = ["rcsD"] if tool == "ar" else ["-shared", "-Wl,-z,noexecstack", "-lpthread", "-o"]
    run = subprocess.run(
        [found, *options, str(ready), str(file)], capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise InputError(f"{tool!r} fails: {run.stderr.strip()[-300:]}; write a .o file")
