"""Graphs for new input shapes without binding and simplifying the network anew.

A network whose inputs have open extents is bound and simplified with symbols for them
(`leanconv.symbolic`): the graph that comes out, with expressions in its shapes and attributes, is
that of every other shape whose extents answer the guards alike (an extent is even, two sizes of a
sum are equal, a map is larger than a window …). Where a symbol will not do, the network is bound to
each shape as it comes. An extent of 0 or 1 is no symbol: what is left out for it is worth a
template of its own.

All graphs of a template share its constants, which stay in memory with it; where that is much, the
network is bound to each shape anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from leanconv.graph.from_sizes import SizedArray, computed
from leanconv.graph.ir import Graph, Origin, TensorType
from leanconv.graph.onnx_import import Model
from leanconv.graph.regions import Region
from leanconv.records import cached_property, dataclass
from leanconv.symbolic import Expression, Symbol, Trace, Values, attempted, guarded, tell

Shape = tuple[int, ...]
Known = Mapping[str, np.ndarray]
Make = Callable[..., Graph]  # of shapes by name, and of known values where there are any

_MOST_KEPT_BYTES = 32 * 2**20  # of constants made at load: weights with folded factors
_MOST_TEMPLATES = 16  # of one pattern of open extents
_PLAIN = (bool, int, float, str, bytes, np.generic)


@dataclass(frozen=True, eq=False)
class Template:
    """A graph with symbols, and what must hold for it.

    Attributes:
        graph: shapes, attributes and constants may hold symbols.
        guards: what binding and simplifying decided.
    """

    graph: Graph
    guards: Mapping[Expression, float]

    def at(self, values: Values) -> Graph | None:
        """The graph for open extents of these values, None if a guard does not hold."""
        found = self._numbers(values)
        if found is None:
            return None
        numbers = dict(zip(self._expressions, found, strict=True))
        graph = self.graph
        types = dict(graph.types)
        for name in self._symbolic_types:
            kind = graph.types[name]
            types[name] = TensorType(_without(kind.shape, numbers), kind.dtype)
        nodes = list(graph.nodes)
        for index in self._symbolic_nodes:
            changed = _without(nodes[index].attributes, numbers)
            nodes[index] = replace(nodes[index], attributes=changed)
        constants = dict(graph.constants)
        for name in self._symbolic_constants:
            constants[name] = _array_without(graph, name, numbers)
        sized = graph.from_sizes
        if sized is not None:
            constants.update(
                computed(
                    sized,
                    lambda attributes: _without(attributes, numbers),
                    lambda name: _array_without(sized, name, numbers),
                )
            )
        filled = tuple(nodes)
        return replace(
            graph,
            inputs=self._inputs,
            from_sizes=None,
            nodes=filled,
            types=MappingProxyType(types),
            constants=MappingProxyType(constants),
            open_axes=self._open_axes,
            origin=Origin(filled, found, partial(self._symbolic, found), self._memo),
        )

    def filled(self, values: Values) -> Graph:
        """The graph for the open extents that it was made with."""
        graph = self.at(values)
        assert graph is not None, "the guards do not hold for what they come from"
        return graph

    @cached_property
    def _memo(self) -> dict[Any, Any]:
        return {}

    def _symbolic(self, numbers: Values, trace: Trace) -> Graph:
        """The graph with symbols of a trace, which have these numbers.

        Each expression is a variable: what is made of it is a short expression.
        """
        symbols = {
            expression: trace.variable(index, number)
            for index, (expression, number) in enumerate(
                zip(self._expressions, numbers, strict=True)
            )
        }
        graph = self.graph
        types = {
            name: TensorType(_without(kind.shape, symbols), kind.dtype)
            for name, kind in graph.types.items()
        }
        nodes = list(graph.nodes)
        for index in self._symbolic_nodes:
            changed = _without(nodes[index].attributes, symbols)
            nodes[index] = replace(nodes[index], attributes=changed)
        sized = () if graph.from_sizes is None else graph.from_sizes.outputs
        unknown: Mapping[str, Any] = {name: SizedArray() for name in sized}
        constants = {**graph.constants, **unknown}
        return replace(
            graph,
            inputs=self._inputs,
            from_sizes=None,
            nodes=tuple(nodes),
            types=MappingProxyType(types),
            constants=MappingProxyType(constants),
            open_axes=self._open_axes,
        )

    @property
    def _inputs(self) -> tuple[str, ...]:
        """The inputs that follow from no sizes."""
        sized = self.graph.from_sizes
        return self.graph.inputs if sized is None else self.graph.inputs[: -len(sized.outputs)]

    def sharing(self, other: Template) -> Template:
        """The same, with the other's arrays for those constants that are equal."""
        known = {_content(array): array for array in other.graph.constants.values()}
        constants = {
            name: known.get(_content(array), array) for name, array in self.graph.constants.items()
        }
        graph = replace(self.graph, constants=MappingProxyType(constants))
        return Template(graph, self.guards)

    @cached_property
    def _open_axes(self) -> Mapping[str, tuple[int, ...]]:
        return _open_axes(self.graph)

    @cached_property
    def _symbolic_types(self) -> tuple[str, ...]:
        return tuple(n for n, kind in self.graph.types.items() if _symbolic(kind.shape))

    @cached_property
    def _symbolic_nodes(self) -> tuple[int, ...]:
        nodes = enumerate(self.graph.nodes)
        return tuple(index for index, node in nodes if _symbolic(node.attributes))

    @cached_property
    def _symbolic_constants(self) -> tuple[str, ...]:
        return _symbolic_constants(self.graph)

    @cached_property
    def _expressions(self) -> tuple[Expression, ...]:
        """Every expression of the graph, once.

        Raises:
            TypeError: an extent is no integer, or an attribute may hide symbols.
        """
        graph = self.graph
        shapes = [graph.types[name].shape for name in self._symbolic_types]
        odd = [each for each in _symbols(shapes) if not isinstance(each.value, int)]
        if odd:
            raise TypeError(f"a shape holds {odd[0]!r}, which is no integer")
        held = (
            *shapes,
            *(graph.nodes[index].attributes for index in self._symbolic_nodes),
            *_held_symbols(graph, self._symbolic_constants),
        )
        sized = graph.from_sizes
        if sized is not None:
            held += tuple(node.attributes for node in sized.nodes)
            held += _held_symbols(sized, _symbolic_constants(sized))
        return tuple(dict.fromkeys(symbol.expression for symbol in _symbols(held)))

    @cached_property
    def _numbers(self) -> Callable[[Values], Values | None]:
        """The values of all expressions; None if a guard does not hold or a divisor is 0."""
        return guarded(self.guards, self._expressions)


class Templates:
    """The templates of a model.

    Args:
        model: what the file says.
        make: binds the model to shapes, and to values of some inputs, and simplifies the graph.
    """

    def __init__(self, model: Model, make: Make) -> None:
        self._inputs, self._make = model.inputs, make
        self._templates: dict[tuple[object, ...], list[Template]] = {}

    def graph(self, shapes: Sequence[Shape], known: Known = MappingProxyType({})) -> Graph:
        """The simplified graph for the shapes of all inputs.

        Args:
            shapes: of the inputs.
            known: values of those that are constants of the graph.

        Raises:
            LeanConvError: as the model's `bind`.
        """
        trace = Trace()
        values: list[int] = []
        symbolic: dict[str, Any] = {}
        for declared, shape in zip(self._inputs, shapes, strict=True):
            extents_known = declared.shape or (None,) * len(shape)
            extents: list[Any] = list(shape)
            symbolic[declared.name] = extents
            for axis, extent in enumerate(extents_known[: len(shape)]):
                fixed = isinstance(extent, int) or declared.name in known
                if not fixed and shape[axis] > 1:
                    extents[axis] = trace.variable(len(values), shape[axis])
                    values.append(shape[axis])
        shown = (["open" if isinstance(n, Symbol) else n for n in e] for e in symbolic.values())
        pattern = (
            *((*extents, None) for extents in shown),
            *((name, array.tobytes()) for name, array in known.items()),
        )
        given = (known,) if known else ()
        concrete = {each.name: shape for each, shape in zip(self._inputs, shapes, strict=True)}
        if not values:
            return self._make(concrete, *given)
        templates = self._templates.setdefault(pattern, [])
        for template in templates:
            graph = template.at(tuple(values))
            if graph is not None:
                return graph
        opened = {name: tuple(extents) for name, extents in symbolic.items()}
        made = attempted(lambda: _made(self._make(opened, *given), trace, tuple(values)))
        if isinstance(made, Exception):
            graph = self._make(concrete, *given)  # or its error alone, if the shapes are at fault
            tell("the network is bound to this shape", made)
            return graph
        template, graph = made
        if _held_bytes(template.graph) <= _MOST_KEPT_BYTES:
            del templates[: len(templates) + 1 - _MOST_TEMPLATES]
            before = next((t for kept in self._templates.values() for t in kept), None)
            if before is not None:  # else weights would be packed again
                template = template.sharing(before)
                graph = template.filled(tuple(values))
            templates.append(template)
        return graph


def _made(graph: Graph, trace: Trace, values: Values) -> tuple[Template, Graph]:
    """The template of a graph with symbols, and what it gives for their values."""
    template = Template(graph, trace.guards)
    return template, template.filled(values)


def _held_bytes(graph: Graph) -> int:
    """Bytes of the constants that are no views of the file."""
    owners = {}
    for array in graph.constants.values():
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if owner.base is None:
            owners[id(owner)] = owner.nbytes
    return sum(owners.values())


def _symbolic_constants(graph: Graph) -> tuple[str, ...]:
    """The names of constants that hold symbols."""
    return tuple(n for n, array in graph.constants.items() if array.dtype == object)


def _held_symbols(graph: Graph, names: Sequence[str]) -> tuple[Any, ...]:
    """What constants hold, symbols among it."""
    return tuple(tuple(graph.constants[name].reshape(-1)) for name in names)


def _array_without(graph: Graph, name: str, numbers: Mapping[Expression, Any]) -> np.ndarray:
    """A constant with numbers for its symbols."""
    array = graph.constants[name]
    if array.dtype != object:
        return array
    held = [_without(item, numbers) for item in array.reshape(-1)]
    return np.array(held, np.int64).reshape(array.shape).astype(graph.types[name].dtype)


def _content(array: np.ndarray) -> Hashable:
    """What equal arrays have in common, and no others."""
    if array.dtype == object:
        return id(array)
    digest = hashlib.blake2b(np.ascontiguousarray(array).data).digest()
    return array.dtype.str, array.shape, digest


def _symbols(value: Any) -> Iterator[Symbol]:
    """All symbols in attributes, however nested.

    Raises:
        TypeError: something else holds them, where `_without` would not find them.
    """
    if isinstance(value, Symbol):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _symbols(item)
    elif isinstance(value, Mapping):
        yield from _symbols(tuple(value.values()))
    elif isinstance(value, Region):
        yield from _symbols_inside(value.graph)
    elif is_dataclass(value):
        yield from _symbols(tuple(getattr(value, each.name) for each in fields(value)))
    elif not (isinstance(value, _PLAIN) or value is None):
        raise TypeError(f"an attribute holds {type(value).__name__}, which may hide symbols")


def _symbols_inside(graph: Graph) -> Iterator[Symbol]:
    """The symbols of a graph that a node holds."""
    if any(array.dtype == object for array in graph.constants.values()):
        raise TypeError("a graph that a node holds has constants of symbols")
    for kind in graph.types.values():
        yield from _symbols(kind.shape)
    for node in graph.nodes:
        yield from _symbols(node.attributes)


def _open_axes(graph: Graph) -> Mapping[str, tuple[int, ...]]:
    """The axes of each value whose extents are symbols."""
    found = {
        name: tuple(axis for axis, n in enumerate(kind.shape) if isinstance(n, Symbol))
        for name, kind in graph.types.items()
    }
    return MappingProxyType({name: axes for name, axes in found.items() if axes})


def _region_without(region: Region, numbers: Mapping[Expression, Any]) -> Region:
    """A graph that a node holds, with numbers for symbols; itself where it has none."""
    graph = region.graph
    if not _symbolic(region):
        return region
    types = {
        name: TensorType(_without(kind.shape, numbers), kind.dtype)
        for name, kind in graph.types.items()
    }
    nodes = tuple(
        replace(node, attributes=_without(node.attributes, numbers)) for node in graph.nodes
    )
    filled = replace(graph, nodes=nodes, types=MappingProxyType(types), open_axes=_open_axes(graph))
    return Region(filled)


def _symbolic(value: Any) -> bool:
    """Whether there is a symbol in it, whatever its number: one that is 0 counts too."""
    return next(_symbols(value), None) is not None


def _without(value: Any, numbers: Mapping[Expression, Any]) -> Any:
    """The same with numbers for symbols."""
    if isinstance(value, Symbol):
        return numbers[value.expression]
    if isinstance(value, (tuple, list)):
        return type(value)([_without(item, numbers) for item in value])
    if isinstance(value, Mapping):
        return MappingProxyType({key: _without(item, numbers) for key, item in value.items()})
    if isinstance(value, Region):
        return _region_without(value, numbers)
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value)]
        return replace(value, **{name: _without(getattr(value, name), numbers) for name in names})
    return value
