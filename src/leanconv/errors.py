"""Every error that leanconv raises on purpose: what was got, what was expected, how to mend it."""


def short(value: object) -> str:
    """A value as messages show it, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an int of more digits than Python writes
        return "an endless number"
    return text if len(text) <= 60 else text[:60] + "…"


class LeanConvError(Exception):
    """The root of all errors that a user of leanconv may want to catch."""


class SpecError(LeanConvError, ValueError):
    """A convolution, shape, dtype or option that makes no sense."""


class InputError(LeanConvError, ValueError):
    """An array or file given to a plan or a network does not fit what it was made for."""


class ModelError(LeanConvError):
    """A model file is damaged, malicious, or breaks the rules of its own format."""


class UnsupportedError(LeanConvError):
    """A model or problem is well formed, but asks for something that leanconv does not do."""


class BudgetError(LeanConvError):
    """No plan fits the memory or error budget.

    Attributes:
        smallest_bytes: the least memory limit for which a plan exists; 0 if the error is what no
            plan keeps.
        smallest_error: in that case, the least max_error for which a plan exists; else None.
    """

    def __init__(
        self, message: str, smallest_bytes: int, smallest_error: float | None = None
    ) -> None:
        super().__init__(message)
        self.smallest_bytes = smallest_bytes
        self.smallest_error = smallest_error


class CompileError(LeanConvError):
    """The code generator was asked for something that its target cannot do."""


class MissingExtraError(LeanConvError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class DeviceError(LeanConvError, RuntimeError):
    """There is no such device, or its driver has refused something."""
