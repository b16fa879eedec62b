"""`InferenceSession`: a network behind onnxruntime's interface."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leanconv.api.inputs import Shape
from leanconv.api.open_library import is_library
from leanconv.errors import LeanConvError, UnsupportedError, short
from leanconv.graph.onnx_description import Description, describe
from leanconv.onnxruntime.engines import Engine, Native, Opened, Other, Trace
from leanconv.onnxruntime.exceptions import (
    BindingError,
    InvalidArgument,
    InvalidProtobuf,
    NoSuchFile,
    raised_as_named,
)
from leanconv.onnxruntime.options import RunOptions, SessionOptions, chosen, ended_by
from leanconv.onnxruntime.split import Split
from leanconv.onnxruntime.values import IOBinding, ModelMetadata, NodeArg, OrtValue
from leanconv.runtime.locks import Lock
from leanconv.types import DType

log = logging.getLogger(__name__)
_Callback = Callable[[Any, Any, str], None]


class InferenceSession:
    """A network that runs as onnxruntime's sessions do.

    Calls from several threads at once are allowed; they run in turn, each on all threads. A
    network that needs what leanconv lacks runs in the real onnxruntime, where that is installed
    and `CPUExecutionProvider` is among the providers: whole, or its beginning or end alone, where
    most convolutions stay here. One warning names what is lacking. A library that
    `leanconv.compile` wrote runs as it is, in as many threads as it was compiled for, and without
    LLVM.

    Args:
        path_or_bytes: of the ONNX file, or its contents; or the path of a library.
        sess_options: see `SessionOptions`.
        providers: names, or names with options; None for all.
        provider_options: of each provider.
        more: further arguments of onnxruntime's; they are not read.

    Raises:
        NoSuchFile: there is no such file.
        InvalidProtobuf: the model is no ONNX file, or damaged.
        InvalidGraph: the model breaks ONNX's rules.
        NotImplemented: the network needs what leanconv lacks, and there is no onnxruntime.
        InvalidArgument: an option makes no sense.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **more: Any,
    ) -> None:
        self._options = SessionOptions() if sess_options is None else sess_options
        self._providers = chosen(providers, provider_options)
        self._source = _source(path_or_bytes)
        with raised_as_named():
            opened = None
            if isinstance(self._source, Path) and is_library(self._source):
                opened = Opened(self._source)
            self._description = opened.description if opened else _described(self._source)
            self._weights = self._options.weights(self._description.weights)
            self._falling_back = Lock("the choice of what computes the same session")
            self._engine: Engine = opened or self._first_engine()
        ports = self._description
        self._inputs = [NodeArg.of(each, None, self._options) for each in ports.inputs]
        self._outputs: list[NodeArg] = []
        self._takes, self._gives = (
            [p.name for p in each] for each in (ports.inputs, ports.outputs)
        )
        self._dtypes = {
            each.name: each.dtype.numpy for each in ports.inputs if isinstance(each.dtype, DType)
        }
        self._trace = Trace(self._options)

    def _first_engine(self) -> Engine:
        try:
            return Native(self._source, self._options, self._weights)
        except UnsupportedError as error:
            return self._other(error, {})

    def _other(
        self, error: UnsupportedError, shapes: Mapping[str, Shape], tried: bool = False
    ) -> Engine:
        """The real onnxruntime for a network that leanconv lacks, with one warning; else the error.

        Args:
            error: leanconv's.
            shapes: of inputs, as far as they are known.
            tried: whether a split was, for these shapes.
        """
        split = None
        if not tried and self._weights is None:
            split = Split.of(self._source, self._options, shapes)
        if split is not None:
            log.warning("%s, leanconv the others: %s", split.text, error)
            return split
        found = Other.of(self._source, self._options)
        if found is None:
            raise error
        log.warning("onnxruntime computes this network: %s", error)
        return found

    # -- running ---------------------------------------------------------------------------
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[np.ndarray]:
        """Compute outputs.

        Args:
            output_names: the outputs wanted, in this order; None or empty for all.
            input_feed: an array, or what NumPy makes one of, for each input by name.
            run_options: see `RunOptions`.

        Returns:
            New arrays.

        Raises:
            InvalidArgument: there is no such input or output, or an array does not fit.
            ValueError: an input is missing.
            Fail: the options say that the run is to end.
        """
        feed = {name: self._array(name, value) for name, value in input_feed.items()}
        self._check_names(feed, output_names)
        with raised_as_named(running=True), ended_by(run_options), self._trace.run(feed):
            results = self._computed(feed, run_options)
        if not output_names:
            return list(results.values())
        return [results[name] for name in output_names]

    def _computed(
        self, feed: Mapping[str, np.ndarray], run_options: RunOptions | None
    ) -> dict[str, np.ndarray]:
        """Compute all outputs, by the engine that takes these shapes."""
        tried = False
        while True:
            engine = self._engine
            try:
                return engine.run(feed, run_options)
            except UnsupportedError as error:
                shapes = {name: np.shape(array) for name, array in feed.items()}
                with self._falling_back.held:
                    if self._engine is engine:
                        self._engine = self._other(error, shapes, tried)
                tried = True

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: _Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
    ) -> None:
        """Run in a thread of its own; `callback(outputs, user_data, error)` ends it."""

        def compute() -> None:
            try:
                results = self.run(output_names, input_feed, run_options)
            except Exception as error:  # whatever it is, the callback gets it
                callback([], user_data, str(error) or type(error).__name__)
            else:
                callback(results, user_data, "")

        threading.Thread(target=compute, daemon=True).start()

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Run on OrtValues in place of arrays, and return such."""
        feed = {name: value.numpy() for name, value in input_dict_ort_values.items()}
        return [OrtValue.ortvalue_from_numpy(y) for y in self.run(output_names, feed, run_options)]

    def io_binding(self) -> IOBinding:
        """Arrays bound to names, for `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(
        self, iobinding: IOBinding, run_options: RunOptions | None = None
    ) -> None:
        """Compute the outputs that are bound, of the inputs that are bound.

        Raises:
            BindingError: bound arrays do not fit the network.
            Fail: the options say that the run is to end.
        """
        try:
            results = self.run(iobinding.wanted, iobinding.feed, run_options)
        except (InvalidArgument, ValueError) as error:
            raise BindingError(str(error)) from error
        iobinding.receive(results)

    def _array(self, name: str, value: Any) -> np.ndarray:
        """Return an input's value as an array: lists become one of the declared type."""
        array = value.numpy() if isinstance(value, OrtValue) else value
        if isinstance(array, np.ndarray):
            return array
        try:
            return np.asarray(array, self._dtypes.get(name))
        except (TypeError, ValueError) as error:
            raise InvalidArgument.of(
                f"input {name!r} is {short(value)}, of which NumPy makes no array; expected one"
            ) from error

    def _check_names(self, feed: Mapping[str, Any], wanted: Sequence[str] | None) -> None:
        missing = [name for name in self._takes if name not in feed]
        if missing:
            raise ValueError(  # as onnxruntime does
                f"Required inputs ({missing}) are missing from input feed ({list(feed)})."
            )
        unknown = next((name for name in feed if name not in self._takes), None)
        if unknown is not None:
            raise InvalidArgument.of(f"Invalid input name: {unknown}; expected {self._takes}")
        unknown = next((name for name in wanted or () if name not in self._gives), None)
        if unknown is not None:
            raise InvalidArgument.of(f"Invalid output name:{unknown}; expected {self._gives}")

    # -- what is known ---------------------------------------------------------------------
    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs of `run`, as the file declares them."""
        return list(self._inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs of `run`, in order; shapes that the file lacks are inferred."""
        if not self._outputs:
            ports, known = self._description.outputs, self._engine.outputs()
            self._outputs = [
                NodeArg.of(port, spec, self._options)
                for port, spec in zip(ports, known, strict=True)
            ]
        return list(self._outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that the file has values for: none may be given here."""
        return []

    def get_modelmeta(self) -> ModelMetadata:
        """Return the file's metadata."""
        file = self._description
        return ModelMetadata(
            file.producer_name,
            file.graph_name,
            file.domain,
            file.text,
            file.graph_text,
            file.version,
            dict(file.metadata),
        )

    def get_session_options(self) -> SessionOptions:
        """The options that this session was made with."""
        return self._options

    def get_providers(self) -> list[str]:
        """Names of this session's providers."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """Options of this session's providers."""
        return {name: dict(options) for name, options in self._providers.items()}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Choose other providers; there is one."""
        self._providers = chosen(providers, provider_options)

    def disable_fallback(self) -> None:
        """Do nothing: it is about onnxruntime's retry with other providers."""

    def enable_fallback(self) -> None:
        """Do nothing: it is about onnxruntime's retry with other providers."""

    @property
    def network(self) -> Any:
        """The `leanconv.Network`, with its plan; None where onnxruntime or a library computes."""
        return self._engine.network

    # -- profiling -------------------------------------------------------------------------
    def end_profiling(self) -> str:
        """Write the times of steps where `enable_profiling` was set; the file's name, or `""`."""
        with raised_as_named():
            return self._trace.end(self._engine)

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began; 0 where it did not."""
        return self._trace.start_ns


Session = InferenceSession  # onnxruntime's base class has no methods beside


def _source(given: Any) -> Path | bytes:
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if not path.exists():
            raise NoSuchFile.of(f"Load model from {path} failed. File doesn't exist")
        return path
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise TypeError(f"Unable to load from type '{type(given)}'")  # as onnxruntime does


def _described(source: Path | bytes) -> Description:
    try:
        return describe(source)
    except LeanConvError as error:
        raise InvalidProtobuf.of(f"Failed to load model: {error}") from error
