"""Which buffers hold the values of a graph while it is lowered, and in which formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np

from leanconv.graph.ir import Graph
from leanconv.planner.views import Views

F = TypeVar("F")  # a format: what the axes of a buffer are


class ValuePlacer(ABC, Generic[F]):
    """The buffers of a graph that is being lowered. A format that is missing is made by a reorder.

    Args:
        graph: after the passes.
        plain: the format of the user's arrays.

    Attributes:
        bytes: size of every buffer that is computed or given.
        views: buffers that are bytes of others.
        constants: arrays by name.
    """

    def __init__(self, graph: Graph, plain: F) -> None:
        self.graph, self._plain = graph, plain
        self.bytes: dict[str, int] = {}
        self.views: Views[str] = Views()
        self.constants: dict[str, np.ndarray] = {}
        self._places: dict[str, dict[F, str]] = {}  # of each value, the buffer in each format
        self._formats: dict[str, F] = {}  # of each value, the one that it was computed in
        self._marks: dict[str, int] = {}  # of each name, how many the last fresh one has
        self._outputs: set[str] = set()  # the user's arrays that are written already

    @abstractmethod
    def size(self, name: str, form: F) -> int:
        """Bytes of a value in a format."""

    @abstractmethod
    def reorder(self, name: str, source: str, result: str, source_form: F, form: F) -> None:
        """Add a step that writes a value into another buffer, in another format or the same."""

    @abstractmethod
    def plain_constant(self, name: str) -> str:
        """The buffer that holds a constant in the format of the user's arrays."""

    def is_used(self, name: str) -> bool:
        """Whether a buffer or a value of the graph has this name."""
        return name in self.bytes or name in self.constants or name in self.graph.types

    def fresh(self, name: str) -> str:
        """A name that nothing has, whatever the file calls its values."""
        marks = self._marks.get(name, 0)
        while self.is_used(name + "'" * marks):
            marks += 1
        self._marks[name] = marks  # a Concat asks thousands of times for one name
        return name + "'" * marks

    def define(self, name: str, form: F) -> str:
        """Place a value that is computed or given in a buffer of its own name."""
        self._formats[name] = form
        self._places[name] = {form: name}
        self.bytes[name] = self.size(name, form)
        return name

    def read(self, name: str, form: F) -> str:
        """The buffer that holds a value in a format; reordered if there is none yet."""
        places = self._places[name]
        if form not in places:
            source_form, source = next(iter(places.items()))
            result = self.fresh(f"{name}/{form}")
            self.bytes[result] = self.size(name, form)
            self.reorder(name, source, result, source_form, form)
            places[form] = result
        return places[form]

    def is_fixed(self, root: str) -> bool:
        """Whether a buffer that lies in no other is the user's, or a constant."""
        return root in self.graph.inputs or root in self.constants or root in self._outputs

    def deliver(self, name: str) -> str:
        """Bring an output into the user's array: by a view if its bytes can be computed there."""
        out, plain = self.fresh(f"{name}/out"), self._plain
        if name in self.graph.constants:
            form, source = plain, self.plain_constant(name)
        else:
            places = self._places[name]
            form = plain if plain in places else self._formats[name]
            source = places[form]
        root, _ = self.views.find(source)
        self.bytes[out] = self.size(name, plain)
        self._outputs.add(out)
        if form == plain and not self.is_fixed(root) and self.bytes[root] <= self.bytes[out]:
            self.views.add(root, out)
        else:
            self.reorder(name, source, out, form, plain)
        return out
