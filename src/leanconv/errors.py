"""Every error that leanconv raises on purpose: what was given, what was expected, and the mend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_MESSAGE = 2000  # characters: names and lists of a file can be long
NAME = 200  # characters of a name that messages show


def outside_text(index: int | str, least: int, most: int) -> str:
    """Return an error's text about an index of a gather or scatter, in ONNX Runtime's words."""
    return (
        f"indices element out of data bounds, idx={index} must be within the inclusive range "
        f"[{least},{most}]"
    )


def short(value: object) -> str:
    """Return a value's text for messages, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes
        return "an endless number"
    return text if len(text) <= 60 else text[:60] + "…"


def shown(name: str) -> str:
    """Return a name of a file, cut if it is long."""
    return name if len(name) <= NAME else name[:NAME] + "…"


class LeanConvError(Exception):
    """The root of all errors that a user of leanconv may want to catch."""


class SpecError(LeanConvError, ValueError):
    """A convolution, shape, dtype or option that makes no sense."""


class InputError(LeanConvError, ValueError):
    """An array or file does not fit the plan or network that it is given to."""


class ModelError(LeanConvError):
    """A model file is damaged, malicious, or breaks the rules of its own format."""


class UnsupportedError(LeanConvError):
    """A model or problem is well formed, but needs something that leanconv does not do."""


class BudgetError(LeanConvError):
    """No plan fits the memory or error budget.

    Attributes:
        smallest_bytes: the least memory limit for which a plan exists; 0 if the error is what no
            plan keeps.
        smallest_error: in that case, the least max_error that works, to the last digit: of plans
            within the memory limit where there is one and any plan is within it; else None.
    """

    def __init__(
        self, message: str, smallest_bytes: int, smallest_error: float | None = None
    ) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes
        self.smallest_error = smallest_error

    def __reduce__(self) -> tuple[object, ...]:
        """Return what pickle needs to make the error again, as in another process."""
        return type(self), (str(self), self.smallest_bytes, self.smallest_error), self.__dict__


class CompileError(LeanConvError):
    """The code generator needs something that its target cannot do."""


class OutOfMemoryError(LeanConvError, MemoryError):
    """The system does not give the memory, or would not give what a compilation needs."""

    def __new__(cls, *what: object) -> OutOfMemoryError:
        """Make one: `MemoryError.__new__`, which others call (tblib, for Dask), refuses to."""
        return Exception.__new__(cls, *what)


def out_of_memory(doing: str, error: MemoryError) -> OutOfMemoryError:
    """Make our error of Python's or NumPy's, for what was being done."""
    return OutOfMemoryError(
        f"{doing}: memory could not be had ({error or 'Python gives no reason'}); free memory, "
        "raise what limits this process (`ulimit -v`), or give smaller shapes"
    )


def memory_reported(
    doing: str,
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a function in which Python or NumPy may run out of memory.

    Args:
        doing: what the function does, for the message of the `OutOfMemoryError`.
    """

    def decorated(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.wraps(function)
        def call(*args: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            try:
                return function(*args, **named)
            except OutOfMemoryError:
                raise
            except MemoryError as error:
                raise out_of_memory(doing, error) from error
            except SystemError as error:
                if "without" not in str(error):
                    raise
                # "error return without exception set": Python had no memory for the exception.
                raise out_of_memory(doing, MemoryError(str(error))) from error

        return call

    return decorated


class ReentrantCallError(LeanConvError, RuntimeError):
    """A signal handler or a `__del__` called a function that its own thread was running."""


class TerminatedError(LeanConvError, RuntimeError):
    """Another thread has said that the run is to end, and it has."""


class BackendError(LeanConvError, ImportError):
    """A library that leanconv needs, llvmlite above all, is absent, too old, or does not load."""


class MissingExtraError(LeanConvError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""


class DeviceError(LeanConvError, RuntimeError):
    """There is no such device, or its driver has refused something."""


def located(error: LeanConvError, where: str) -> LeanConvError:
    """The error with its place in front."""
    kind = type(error)
    made = kind.__new__(kind, f"{where}: {error}"[:_MESSAGE])  # whatever else it is made of
    made.__dict__.update(error.__dict__)
    return made


def located_inside(error: LeanConvError, where: str) -> LeanConvError:
    """The error with its place in front, if it has none yet: one in a graph that nodes hold.

    Graphs lie in graphs, and the innermost node says enough.
    """
    return error if str(error).startswith("node ") else located(error, where)
