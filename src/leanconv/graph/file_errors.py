"""Errors that say where in a file they happened, with names short enough for messages."""

from __future__ import annotations

from leanconv.errors import LeanConvError, UnsupportedError

_MESSAGE = 2000  # characters: names and lists of a file can be long
NAME = 200  # characters of a name that messages show


class NeedsValuesError(UnsupportedError):
    """A node cannot be bound while a value is data; it could be computed if that were known.

    Attributes:
        value: the `graph.value.Value`, if it is one; None if nothing says which.
    """

    value: object = None

    def of(self, value: object) -> NeedsValuesError:
        """Take note of the value that is needed, and return this error."""
        self.value = value
        return self


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


def shown(name: str) -> str:
    """A name short enough for a message."""
    return name if len(name) <= NAME else name[:NAME] + "…"
