"""`leanconv.compile`: a planned network as an object or a library, without Python.

What is planned is what `load` plans for numbers as `shapes`, each size for itself: the same
kernels, places and packed weights, so that the answers have the same bits. All of it is one object
file, which LLVM makes for any target: code, tables, weights, and the functions of a small C
interface (`library_files`).
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeAlias

from leanconv.api.cpu_backend import CpuBackend
from leanconv.api.file_network import completed, limiting_beside
from leanconv.api.library_files import Summary, example, header, summary
from leanconv.api.library_links import SUFFIXES, WHEEL, library_suffix, linker_of, packed
from leanconv.api.options import NetworkOptions, checked_dtype, model_source
from leanconv.api.stated_shapes import with_shapes
from leanconv.api.wheel import wheel_name, write_wheel
from leanconv.codegen.machine_code import linked_object, with_features
from leanconv.codegen.object_symbols import object_symbols
from leanconv.errors import InputError, SpecError, UnsupportedError, memory_reported
from leanconv.graph.onnx_import import Model, read_model
from leanconv.graph.onnx_tensor import GivenWeights
from leanconv.planner.plan_file import PlanFile, read_plan
from leanconv.planner.portable_network import ConstantSection, PortableNetwork, target_programs
from leanconv.progress import Progress, checked_progress, step, working
from leanconv.records import dataclass, replace
from leanconv.runtime import native
from leanconv.runtime.calibration import planning_target
from leanconv.runtime.static_library import description_text, static_library
from leanconv.runtime.static_program import MARK_BYTES
from leanconv.runtime.static_workers import windows_text
from leanconv.target import PRESETS, Target, preset
from leanconv.target.systems import on_system, system_of
from leanconv.units import shape_text

_MOST_SIZES = 64  # each of which has a plan, and a function
_WEIGHTS = "packed", "compact", "file"
Extents: TypeAlias = "Sequence[int | tuple[int, int] | tuple[int, int, int]]"
Shapes: TypeAlias = "Mapping[str, Extents] | Extents"


@dataclass(frozen=True)
class CompiledLibrary:
    """What `compile` wrote.

    Attributes:
        files: the object, archive or library first, then the header and the description; or the
            wheel alone.
        block_bytes: of the memory that the caller gives, `NAME_arena_bytes()`.
        weight_bytes: of weights and tables, in the file.
        targets: the processors that it is for.
        threads: that take part in a run, the caller counted.
        predicted_error: the largest one of its plans; None where one states none.
    """

    files: tuple[Path, ...]
    block_bytes: int
    weight_bytes: int
    targets: tuple[str, ...]
    threads: int
    predicted_error: float | None


@memory_reported("compiling a network")
def compile(  # noqa: A001 - the public name
    model: str | os.PathLike[str] | bytes | Any,
    out: str | os.PathLike[str],
    *,
    shapes: Shapes | Sequence[Shapes] | None = None,
    target: str = "host",
    threads: int | None = None,
    plan: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    memory_limit: int | str | None = None,
    max_error: float | None = None,
    reproducible: bool = False,
    algorithms: Mapping[str, str] | None = None,
    precision: str | None = None,
    stream_weights: bool = False,
    weights: str = "packed",
    weight_values: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> CompiledLibrary:
    """Write a network as an object or a library that needs no Python.

    Beside `out` a C header of the same name (`.h`) declares its functions, and a `.json` says what
    it takes, gives and needs. The functions allocate nothing and write to no memory but what the
    caller gives: `NAME_init` prepares a block of `NAME_arena_bytes()`, `NAME_run` runs in it.

    Args:
        model, dtype, memory_limit, max_error, reproducible, algorithms, precision, progress: as
            for `load`.
        out: `.o` or `.obj` (an object), `.a` or `.lib` (an archive), `.so` or `.dylib` (a shared
            library, which `cc` links, for this system alone), `.wasm` (a module of WebAssembly); or
            a folder that is there, for `net.o` with an example: a C program and its CMake file.
            `NAME-VERSION.whl` is a package for Python that needs NumPy alone: its file gets the
            system that it is for into its name, and nothing is written beside it.
        shapes: those of the inputs that the file leaves open, by name, or that of the only input.
            Of several ones, in a list, each has a function of its own, such as
            `NAME_run_1x3x224x224`; weights that they share are there once. So has each of a range,
            which is (least, most, step) in the place of an extent, with the bits of `load` for
            these numbers: a network of open sizes has one plan for many of them.
        target: the processor that it is for: "host", or a name as `haswell`, `znver4`,
            `skylake-avx512`, `neoverse-n1`, `armv8-a`, `wasm32-simd128`, under Linux; or such a
            name, a colon and a system: `android`, `ios`, `macos`, `windows`, `freebsd`, `none`, or
            an LLVM triple. Of several, as "haswell,znver4", `NAME_init` takes the
            best one that the CPU has.
        threads: that take part in a run, the caller counted: one by default, or those of `plan`.
            Workers are POSIX threads, on Windows the system's own; WebAssembly has one thread.
        plan: as for `load`, for one set of shapes and one target.
        stream_weights: where no plan fits `memory_limit` otherwise, it limits the caller's memory
            alone: weights are pages of a file, which the system drops and reads again.
        weights: "packed": as kernels read them; "compact": those that this makes larger are kept
            as they are, and `NAME_init` packs them into the caller's block; "file": packed, in a
            file beside (`.weights`), whose bytes the caller maps and gives to `NAME_init`.
        weight_values: as `weights` of `load`.
        name: the prefix of the functions; None for the file's, so that `libnet.so` has `net_run`.

    Raises:
        InputError, ModelError, BudgetError: as for `load`.
        UnsupportedError: something of the network is computed by NumPy when values are known.
        SpecError: an option makes no sense.
    """
    folder, path = Path(out).is_dir(), Path(out)
    path = path / "net.o" if folder else path
    if path.suffix not in SUFFIXES:
        raise SpecError(
            f"got out={str(path)!r}; expected a folder, or a name that ends in "
            f"{', '.join(SUFFIXES)}"
        )
    stem = wheel_name(path)[0] if path.suffix == WHEEL else path.stem.removeprefix("lib")
    prefix = stem if name is None else name
    if not (prefix.isidentifier() and prefix.isascii()):
        raise SpecError(f"got name {prefix!r}; expected a C identifier: give name=, or --name")
    if weights not in _WEIGHTS:
        raise SpecError(f"got weights={weights!r}; expected one of {', '.join(_WEIGHTS)}")
    limiting_beside(algorithms, memory_limit, max_error, plan)
    options = NetworkOptions.checked(
        threads=threads,
        dtype=checked_dtype(dtype),
        memory_limit=memory_limit,
        max_error=max_error,
        reproducible=reproducible,
        algorithms=algorithms,
        precision=precision,
        stream_weights=stream_weights,
    )
    pinned = None if plan is None else read_plan(plan)
    if pinned is not None:
        options = completed(options, pinned)
    options = replace(options, threads=options.threads or 1)
    checked_progress(progress)
    source, targets = model_source(model), _targets(target, options.threads or 1)
    linker = linker_of(path.suffix, targets[0])
    shown = source.name if isinstance(source, Path) else f"a model of {len(source)} bytes"
    with working(shown, progress):
        step("reading", 0, 1)
        read = read_model(source, weights=GivenWeights.checked(weight_values))
        step("reading", 1, 1)
        wanted = _by_function(read, shapes)
        networks = [
            _planned(read, wanted, options, pinned, each, weights == "compact") for each in targets
        ]
        outside = path.with_suffix(".weights").name if weights == "file" else None
        body, constants, facts = _object(read, networks, prefix, options.threads or 1, outside)
        beside = _beside(path, facts, constants, folder)
        return _written(path, body, beside, facts, linker)


def _targets(names: str, threads: int) -> list[Target]:
    """Return the targets of a list of names, the best one first.

    Raises:
        SpecError: there is none of a name, or there are no threads.
    """
    found = list[Target]()
    for name in names.split(","):
        cpu, colon, system = name.strip().partition(":")
        if cpu not in ("host", *PRESETS):
            near = get_close_matches(cpu, PRESETS, 1)
            raise SpecError(
                f"target {cpu!r} is not known; expected host, for this machine, or one of "
                f"{', '.join(PRESETS)}{f': did you mean {near[0]}?' if near else ''}"
            )
        base = planning_target() if cpu == "host" else preset(cpu)
        found.append(on_system(base, system) if colon else base)
        if threads > 1 and system_of(found[-1].triple) in ("wasm", "none"):
            raise SpecError(f"got threads={threads} for {name}; expected 1: nothing starts others")
    found = [each if system_of(each.triple) == "linux" else each.without_tiles for each in found]
    for each in found:
        if found.count(each) > 1:
            raise SpecError(f"got the target {each.name!r} twice; expected each once")
    if len({each.triple for each in found}) > 1:
        raise SpecError(f"got the targets {names!r}; expected processors of one kind of system")
    return sorted(found, key=lambda each: (-each.vector_bytes, -len(each.extensions)))


def _by_function(model: Model, shapes: Any) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return the shapes of all inputs by the name of the function that takes them.

    Raises:
        SpecError: an extent is open, or two functions would have one name.
    """
    several = isinstance(shapes, (list, tuple)) and (
        shapes == [] or not any(isinstance(each, int) for each in shapes)
    )
    sets = [fixed for each in (shapes if several else [shapes]) for fixed in _sizes(model, each)]
    found = dict[str, tuple[tuple[int, ...], ...]]()
    for fixed in sets:
        texts = [shape_text(shape) for shape in fixed]
        name = "run" if len(sets) == 1 else "_".join(["run", *texts])
        if name in found:
            raise SpecError(f"got the shapes {', '.join(texts)} twice; expected each once")
        found[name] = fixed
    if not found:
        raise SpecError("got shapes=[]; expected at least one")
    return found


def _sizes(model: Model, shapes: Any) -> Sequence[tuple[tuple[int, ...], ...]]:
    """Return all shapes of all inputs that a user states together.

    Raises:
        SpecError: ranges are of more sizes than a library has functions for.
    """
    if shapes is None:
        return [_fixed(model)]
    stated, ranges = with_shapes(model, shapes)
    if ranges is None or ranges.values:
        return [_fixed(stated)]
    if ranges.count > _MOST_SIZES:
        raise SpecError(
            f"got shapes={ranges}, which are of {ranges.count} sizes; expected at most "
            f"{_MOST_SIZES}: give larger steps"
        )
    return list(ranges)


def _planned(
    model: Model,
    wanted: Mapping[str, tuple[tuple[int, ...], ...]],
    options: NetworkOptions,
    pinned: PlanFile | None,
    target: Target,
    compact: bool,
) -> dict[str, PortableNetwork]:
    """Plan a network for one target, for each function's shapes."""
    found = {}
    for name, shapes in wanted.items():
        stated = with_shapes(model, _named(model, shapes))[0]
        backend = CpuBackend(stated, options, pinned, target=target)
        found[name] = backend.portable(shapes, compact)
    return found


def _named(model: Model, shapes: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {each.name: shape for each, shape in zip(model.inputs, shapes, strict=True)}


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


def _object(
    model: Model,
    networks: Sequence[Mapping[str, PortableNetwork]],
    prefix: str,
    threads: int,
    outside: str | None,
) -> tuple[bytearray, bytearray, Summary]:
    """Make the object file of networks, with their description in it.

    Args:
        model: as read from its file.
        networks: for each target, by functions.
        prefix: of these.
        threads: that take part.
        outside: the name of a file for the constants; None for the object.

    Returns:
        The object, the file of constants, and the description.
    """
    section, made, memory, packed = ConstantSection(), [], 0, 0
    for each in networks:
        programs, its_memory, its_packed = target_programs(each, section)
        made.append(programs)
        memory, packed = max(memory, its_memory), max(packed, its_packed)
    size, mark = MARK_BYTES + section.bytes, section.mark
    tables = None if outside is None else section.table_sum(MARK_BYTES)
    library = static_library(made, prefix, size, mark, memory, threads, tables)
    plans = [{name: each.plan for name, each in found.items()} for found in networks]
    facts = summary(prefix, model, plans, library, size, packed, outside)
    step("compiling", 0, 1)
    target = made[0].target
    texts = [library.text, description_text(prefix, json.dumps(facts))]
    runtime_text = native.alone_text if threads == 1 else native.runtime_text
    texts.append(runtime_text(native.arch_of(target.triple)))
    if system_of(target.triple) == "windows":
        texts.append(windows_text(threads))
    texts += {
        name: with_features(text, programs.target)
        for programs, found in zip(made, networks, strict=True)
        for each in found.values()
        for name, text in each.texts.items()
    }.values()
    body = bytearray(linked_object(texts, library.names, target))
    _check_alone(body, target)
    step("compiling", 1, 1)
    begin = body.index(mark)
    assert body.find(mark, begin + 1) < 0, "the mark of constants is there once"
    if outside is None:
        section.write(body, begin + MARK_BYTES)
        return body, bytearray(), facts
    constants = bytearray(size)
    constants[: len(mark)] = mark
    section.write(constants, MARK_BYTES)
    return body, constants, facts


def _check_alone(body: bytearray, target: Target) -> None:
    """Check that WebAssembly needs no function of others, as there is no library of C.

    Raises:
        UnsupportedError: it does.
    """
    needed = object_symbols(body).needed if system_of(target.triple) == "wasm" else ()
    if needed:
        raise UnsupportedError(
            f"{target.name} lacks instructions for what the network computes, and would need the "
            f"functions {', '.join(sorted(needed))}"
        )


def _beside(
    path: Path, facts: Summary, constants: bytearray, with_example: bool
) -> dict[Path, bytes | bytearray]:
    """Return what is written beside a library."""
    place = path.with_suffix(".h")
    files: dict[Path, bytes | bytearray] = {
        place: header(facts).encode(),
        path.with_suffix(".json"): json.dumps(facts, indent=1).encode() + b"\n",
    }
    if constants:
        files[path.with_suffix(".weights")] = constants
    if with_example:
        texts = example(facts, place.name, path.name)
        files.update((path.parent / name, text.encode()) for name, text in texts.items())
    return files


def _written(
    path: Path,
    body: bytearray,
    beside: Mapping[Path, bytes | bytearray],
    facts: Summary,
    linker: Sequence[str],
) -> CompiledLibrary:
    """Write all files, each whole or not at all."""
    try:
        with tempfile.TemporaryDirectory(prefix=".leanconv-", dir=path.parent) as folder:
            ready = Path(folder) / f"ready{path.suffix}"
            file = Path(folder) / f"{facts['name'][:13]}.o"
            file.write_bytes(body)
            if path.suffix == WHEEL:
                library = ready.with_suffix(library_suffix(facts["targets"][0]["triple"]))
                packed(file, library, linker)
                weights = beside.get(path.with_suffix(".weights"))
                path = path.with_name(write_wheel(ready, path, library, weights, facts))
                beside = {}
            else:
                packed(file, ready, linker)
            for place, data in beside.items():
                (Path(folder) / place.name).write_bytes(data)
            for place in beside:
                os.replace(Path(folder) / place.name, place)
            os.replace(ready, path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    errors = [plan["predicted_error"] for run in facts["runs"] for plan in run["plans"]]
    return CompiledLibrary(
        (path, *beside),
        facts["block_bytes"],
        facts["weight_bytes"],
        tuple(each["name"] for each in facts["targets"]),
        facts["threads"],
        None if None in errors else max(errors),
    )
