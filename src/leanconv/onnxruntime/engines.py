"""What computes a session's network: leanconv, or the real onnxruntime for what that lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import leanconv
from leanconv.api.inputs import InputSpec
from leanconv.graph.onnx_tensor import GivenWeights
from leanconv.graph.small_inputs import NeedsInputsError
from leanconv.onnxruntime import exceptions
from leanconv.onnxruntime.options import RunOptions, SessionOptions
from leanconv.onnxruntime.providers import CPU
from leanconv.onnxruntime.real import real
from leanconv.onnxruntime.shapes import inferred
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


class Engine(Protocol):
    """A network that computes all outputs by name."""

    network: Any

    def outputs(self) -> Sequence[InputSpec | None]:
        """What is known of each output, beside what the file declares."""

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """All outputs, in the file's order; `options` are those of the run, or None."""


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
        """What the plan says of them, or binding to sample sizes where the file says nothing."""
        specs = self.network.outputs
        if all(each.shape is not None for each in specs):
            return specs
        shapes = inferred(self.network.backend.model)
        return [
            replace(each, shape=shapes.get(each.name)) if each.shape is None else each
            for each in specs
        ]

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """All outputs; inputs that no output needs are not looked at.

        Raises:
            UnsupportedError: the network needs what leanconv lacks at these shapes.
        """
        del options  # the session's thread looks at them while it runs
        return self.network.run({name: feed[name] for name in self._inputs})


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
        """What onnxruntime says of them."""
        return [
            InputSpec(each.name, tuple(each.shape), dtype) if dtype else None
            for each in self._session.get_outputs()
            for dtype in (dtype_of_type(each.type),)
        ]

    def run(self, feed: Mapping[str, np.ndarray], options: Any) -> Arrays:
        """All outputs.

        Raises:
            OnnxRuntimeError: what onnxruntime raised, under the same name.
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
