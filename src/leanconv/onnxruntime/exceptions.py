"""Exceptions named as onnxruntime names them, with its codes in their messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from leanconv import errors


class OnnxRuntimeError(errors.LeanConvError):
    """The root of all errors here, which onnxruntime itself lacks.

    Attributes:
        code: onnxruntime's number and name of this kind of error.
    """

    code: ClassVar[tuple[int, str]] = (1, "FAIL")

    @classmethod
    def of(cls, text: str) -> OnnxRuntimeError:
        """The error with onnxruntime's prefix before the text."""
        number, name = cls.code
        return cls(f"[ONNXRuntimeError] : {number} : {name} : {text}")


class Fail(OnnxRuntimeError):
    """An error of a kind that has no class of its own."""


class InvalidArgument(OnnxRuntimeError):
    """An array, a name or an option that does not fit."""

    code = (2, "INVALID_ARGUMENT")


class BindingError(InvalidArgument, RuntimeError, ValueError):
    """A value, or a binding to a name, does not fit: a RuntimeError in onnxruntime."""


class NoSuchFile(OnnxRuntimeError):
    """There is no such model file."""

    code = (3, "NO_SUCHFILE")


class NoModel(OnnxRuntimeError):
    """There is no model."""

    code = (4, "NO_MODEL")


class EngineError(OnnxRuntimeError):
    """Named for programs that catch it; leanconv does not raise it."""

    code = (5, "ENGINE_ERROR")


class RuntimeException(OnnxRuntimeError):
    """A run failed, for memory above all."""

    code = (6, "RUNTIME_EXCEPTION")


class InvalidProtobuf(OnnxRuntimeError):
    """The bytes are no ONNX model, or a damaged one."""

    code = (7, "INVALID_PROTOBUF")


class ModelLoaded(OnnxRuntimeError):
    """Named for programs that catch it; leanconv does not raise it."""

    code = (8, "MODEL_LOADED")


class NotImplemented(OnnxRuntimeError):  # noqa: A001  onnxruntime's name
    """The network needs an operation or a type that leanconv lacks."""

    code = (9, "NOT_IMPLEMENTED")


class InvalidGraph(OnnxRuntimeError):
    """The network breaks ONNX's rules."""

    code = (10, "INVALID_GRAPH")


class EPFail(OnnxRuntimeError):
    """A provider is not available."""

    code = (11, "EP_FAIL")


NAMED: dict[str, type[OnnxRuntimeError]] = {
    each.__name__: each
    for each in (
        Fail,
        InvalidArgument,
        NoSuchFile,
        NoModel,
        EngineError,
        RuntimeException,
        InvalidProtobuf,
        ModelLoaded,
        NotImplemented,
        InvalidGraph,
        EPFail,
    )
}

# The first that an error is an instance of says what it becomes.
_BECOMES: tuple[tuple[type[BaseException], type[OnnxRuntimeError]], ...] = (
    (errors.OutOfMemoryError, RuntimeException),
    (errors.InputError, InvalidArgument),
    (errors.SpecError, InvalidArgument),
    (errors.UnsupportedError, NotImplemented),
    (errors.ModelError, InvalidGraph),
    (errors.LeanConvError, RuntimeException),
)


def named(error: errors.LeanConvError, *, running: bool = False) -> OnnxRuntimeError:
    """An error of leanconv under onnxruntime's name for its kind.

    Args:
        error: to be raised under onnxruntime's name.
        running: whether arrays were given: then a network that does not fit does not fit these.
    """
    if isinstance(error, OnnxRuntimeError):
        return error
    if running and isinstance(error, errors.ModelError):
        return InvalidArgument.of(str(error))
    return next(ours for theirs, ours in _BECOMES if isinstance(error, theirs)).of(str(error))


@contextmanager
def raised_as_named(*, running: bool = False) -> Iterator[None]:
    """Raise leanconv's errors inside under onnxruntime's names; `running` as of `named`."""
    try:
        yield
    except OnnxRuntimeError:
        raise
    except errors.LeanConvError as error:
        raise named(error, running=running) from error
