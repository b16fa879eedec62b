"""Engines that compute a session's network: leanconv, or the real onnxruntime for the rest.

The real one is found where it is installed, also while `install()` has put ours under its name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

import leanconv
from leanconv.api.inputs import InputSpec
from leanconv.errors import LeanConvError
from leanconv.forks import importing
from leanconv.graph.ir import Graph
from leanconv.graph.network_inputs import NeedsInputsError
from leanconv.graph.onnx_description import Description, Port
from leanconv.graph.onnx_import import Model
from leanconv.graph.onnx_tensor import GivenWeights
from leanconv.onnxruntime import exceptions
from leanconv.onnxruntime.exceptions import NAMED
from leanconv.onnxruntime.options import CPU, RunOptions, SessionOptions
from leanconv.onnxruntime.values import dtype_of_type

Arrays = dict[str, np.ndarray]
# Options that the real onnxruntime gets, too.
_PASSED_ON = (
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
    "enable_mem_reuse",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "logid",
    "use_deterministic_compute",
)
Extents = tuple[int | str | None, ...]
# Each open extent gets sizes of its own, so that an output's extent tells whose it is. Networks
# that halve their maps five times take multiples of 32.
_SIZES = (64, 96)
_STEP = 64
_MOST = 100_000  # runs that are kept
NAME = "onnxruntime"
_kept: dict[str, ModuleType] = {}  # its modules, while others stand under their names
log = logging.getLogger(__name__)
# Modules of onnxruntime's that packages import or catch exceptions from.
_PARTS = (
    "capi",
    "capi._pybind_state",
    "capi.onnxruntime_pybind11_state",
    "capi.onnxruntime_inference_collection",
)


class Engine(Protocol):
    """A network that computes all outputs by name."""

    network: Any

    def outputs(self) -> Sequence[InputSpec | None]:
        """Return the specs of the outputs, beside the file's; None for unknown ones."""

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """Compute all outputs, in the file's order; `options` are those of the run, or None."""


class Native:
    """The network in leanconv."""

    def __init__(
        self, source: Path | bytes, options: SessionOptions, weights: GivenWeights | None = None
    ) -> None:
        self.network = leanconv.load(source, threads=options.threads, weights=weights)
        self._inputs = [spec.name for spec in self.network.inputs]
        shapes: dict[str, tuple[int, ...]] = {}
        for spec in self.network.inputs:
            shape = None if spec.shape is None else options.fixed(spec.shape)
            if shape is not None and all(isinstance(n, int) for n in shape):
                shapes[spec.name] = tuple(n for n in shape if isinstance(n, int))
        if options.extents and len(shapes) == len(self._inputs):
            with contextlib.suppress(NeedsInputsError):  # planned when their values come
                self.network.bind(shapes)

    def outputs(self) -> Sequence[InputSpec | None]:
        """Return the plan's specs; shapes that it lacks are found by binding to sample sizes."""
        specs = self.network.outputs
        if all(each.shape is not None for each in specs):
            return specs
        shapes = inferred(self.network.backend.model)
        return [
            replace(each, shape=shapes.get(each.name)) if each.shape is None else each
            for each in specs
        ]

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """Compute all outputs; inputs that no output needs are not looked at.

        Raises:
            UnsupportedError: the network needs what leanconv lacks at these shapes.
        """
        del options  # the session's thread looks at them while it runs
        return self.network.run({name: feed[name] for name in self._inputs})


class Opened:
    """A network that was compiled to a library, without LLVM."""

    network = None

    def __init__(self, path: Path) -> None:
        self._library = leanconv.open(path)
        self._inputs = [spec.name for spec in self._library.inputs]

    @property
    def description(self) -> Description:
        """What a session says of the network: a library has no other metadata."""
        found = self._library
        takes, gives = (
            tuple(Port(spec.name, spec.dtype, spec.shape) for spec in specs)
            for specs in (found.inputs, found.outputs)
        )
        name = str(found.facts["name"])
        return Description("leanconv", "", 0, "", name, "", {}, takes, gives, frozenset())

    def outputs(self) -> Sequence[InputSpec | None]:
        """Return the library's specs."""
        return self._library.outputs

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """Compute all outputs; nothing ends the run before its time."""
        del options
        return self._library.run({name: feed[name] for name in self._inputs})


class Other:
    """The network in the real onnxruntime."""

    network = None

    def __init__(self, session: Any, kept: Sequence[Any] = ()) -> None:
        self._session, self._kept = session, kept
        self._takes = {each.name for each in session.get_inputs()}
        self._names = [each.name for each in session.get_outputs()]

    @classmethod
    def of(cls, source: Path | bytes, options: SessionOptions) -> Other | None:
        """The network there; None where onnxruntime is not installed, or lacks something, too."""
        module = real()
        if module is None:
            return None
        theirs = module.SessionOptions()
        for name in _PASSED_ON:
            setattr(theirs, name, getattr(options, name))
        for extent, number in options.extents.items():
            theirs.add_free_dimension_override_by_name(extent, number)
        given = source if isinstance(source, bytes) else str(source)
        try:
            kept = options.pass_on(theirs, module.OrtValue)
            return cls(module.InferenceSession(given, theirs, providers=[CPU]), kept)
        except Exception:  # of classes that are known by their names alone
            return None

    def outputs(self) -> Sequence[InputSpec | None]:
        """Return onnxruntime's specs of the outputs; None for types that leanconv lacks."""
        return [
            InputSpec(each.name, tuple(each.shape), dtype) if dtype else None
            for each in self._session.get_outputs()
            for dtype in (dtype_of_type(each.type),)
        ]

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """Compute all outputs.

        Raises:
            OnnxRuntimeError: the real onnxruntime's error, under the same name.
        """
        given = {n: x for n, x in feed.items() if n in self._takes}
        followed: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        module = real()
        if isinstance(options, RunOptions) and module is not None:
            followed = options.followed_by(module.RunOptions())
        try:
            with followed as theirs:
                results = self._session.run(None, given, theirs)
        except Exception as error:
            named = exceptions.NAMED.get(type(error).__name__)
            if named is None:
                raise
            raise named(str(error)) from error
        return dict(zip(self._names, results, strict=True))


def inferred(model: Model) -> dict[str, Extents]:
    """Shapes of outputs by name: numbers, names of inputs' extents, None for other open ones.

    The network is bound to two sets of sizes, and what is equal in both is a number. Outputs whose
    rank differs, and networks that do not take these sizes, are left out.
    """
    graphs: list[Graph] = []
    sizes: dict[object, int] = {}
    for size in _SIZES:
        sizes.clear()
        shapes = {}
        for each in model.inputs:
            if each.shape is None:
                return {}
            keys = [
                n if isinstance(n, int | str) else (each.name, axis)
                for axis, n in enumerate(each.shape)
            ]
            shapes[each.name] = tuple(
                key if isinstance(key, int) else sizes.setdefault(key, size + _STEP * len(sizes))
                for key in keys
            )
        try:
            graphs.append(model.bind(shapes))
        except LeanConvError:
            return {}
    names = [key if isinstance(key, str) else None for key in sizes]
    found = {}
    for name, *values in zip(model.outputs, *(graph.outputs for graph in graphs), strict=True):
        first, second = (
            graph.types[value].shape for graph, value in zip(graphs, values, strict=True)
        )
        if len(first) == len(second):
            found[name] = tuple(_extent(a, b, names) for a, b in zip(first, second, strict=True))
    return found


def _extent(first: int, second: int, names: list[str | None]) -> int | str | None:
    if first == second:
        return first
    number, rest = divmod(first - _SIZES[0], _STEP)
    whose = not rest and second - first == _SIZES[1] - _SIZES[0] and 0 <= number < len(names)
    return names[number] if whose else None


class Trace:
    """A profile, as `enable_profiling` asks for it: when each run was, and the steps of one.

    Attributes:
        start_ns: when it began; 0 where it was not asked for.
    """

    def __init__(self, options: SessionOptions) -> None:
        self._on = bool(options.enable_profiling)
        self._prefix = options.profile_file_prefix
        self._runs: list[dict[str, Any]] = []
        self._feed: dict[str, np.ndarray] = {}
        self.start_ns = time.monotonic_ns() if self._on else 0

    @contextmanager
    def run(self, feed: Mapping[str, np.ndarray]) -> Iterator[None]:
        """Note when a run begins and how long it takes."""
        if not self._on:
            yield
            return
        begin = time.monotonic_ns()
        yield
        if len(self._runs) < _MOST:
            self._runs.append(self._event("model_run", begin, time.monotonic_ns() - begin, {}))
        self._feed = dict(feed)

    def end(self, engine: Engine) -> str:
        """Write the file; its name, or `""` where profiling is not on.

        Steps are timed now, on the inputs of the last run: inside a run they are one call.
        """
        if not self._on:
            return ""
        self._on = False
        events = list(self._runs)
        network, place = engine.network, time.monotonic_ns()
        if network is not None and self._feed:
            names = [spec.name for spec in network.inputs]
            for row in network.profile({name: self._feed[name] for name in names}):
                args = {"op_name": row.op, "algorithm": row.algorithm, "flops": str(row.flops)}
                events.append(self._event(row.name, place, int(row.median_ns), args))
                place += int(row.median_ns)
        self._runs, self._feed = [], {}
        file = f"{self._prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}.json"
        Path(file).write_text(json.dumps(events, indent=1), encoding="utf-8")
        return file

    def _event(self, name: str, begin: int, length: int, args: dict[str, str]) -> dict[str, Any]:
        return {
            "cat": "Node" if args else "Session",
            "name": name,
            "ph": "X",
            "ts": (begin - self.start_ns) // 1000,
            "dur": max(1, length // 1000),
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "args": args,
        }


def is_real(module: ModuleType) -> bool:
    """Return whether a module is one of the real onnxruntime."""
    return not getattr(module, "__leanconv__", False)


def modules() -> dict[str, ModuleType]:
    """Return the modules in `sys.modules` that have onnxruntime's names."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if name == NAME or name.startswith(f"{NAME}.")
    }


def replace_modules(others: dict[str, ModuleType]) -> None:
    """Put other modules under onnxruntime's names, and keep the real ones."""
    with importing():
        _replace(others)


def real() -> Any | None:
    """The real onnxruntime; None where it is not installed, or does not load."""
    with importing():
        found = _kept.get(NAME) or sys.modules.get(NAME)
        if found is not None and is_real(found):
            return found
        before = modules()
        _replace({})
        try:
            return import_module(NAME)
        except (ImportError, OSError):
            return None
        finally:
            _replace(before)


def _replace(others: dict[str, ModuleType]) -> None:
    before = modules()
    _kept.update({name: module for name, module in before.items() if is_real(module)})
    for name in before:
        del sys.modules[name]
    sys.modules.update(others)


def restore() -> None:
    """Put the real modules back under their names, those that were imported."""
    with importing():
        _replace(dict(_kept))
        _kept.clear()


def install(names: Mapping[str, object], file: str) -> None:
    """Have `import onnxruntime` find these names; where it does already, nothing.

    Args:
        names: the attributes of the module.
        file: that it comes from.
    """
    before = modules().values()
    if before and not any(map(is_real, before)):
        return
    if before:
        log.warning(
            "onnxruntime was imported before install(); what imported it keeps it: call "
            "leanconv.onnxruntime.install() first"
        )
    replace_modules(_modules(names, file))


def _modules(names: Mapping[str, object], file: str) -> dict[str, ModuleType]:
    result = {NAME: _module(NAME, names, file)}
    inner = {**names, **NAMED}
    for part in _PARTS:
        result[f"{NAME}.{part}"] = _module(f"{NAME}.{part}", inner, file)
    for part in _PARTS:
        above, _, name = f"{NAME}.{part}".rpartition(".")
        setattr(result[above], name, result[f"{NAME}.{part}"])
    return result


def _module(name: str, held: Mapping[str, object], file: str) -> ModuleType:
    """A module under one of onnxruntime's names. Other modules below it are not found."""
    module = ModuleType(name, "leanconv's sessions under onnxruntime's name.")
    module.__dict__.update(held, __leanconv__=True, __path__=[], __file__=file)
    module.__spec__ = ModuleSpec(name, None, origin=file, is_package=True)
    return module
