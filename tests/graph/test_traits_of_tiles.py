"""What tiles, segments and rooms know of an operation is what its record says."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from leanconv.cli.times import other_ns
from leanconv.errors import UnsupportedError
from leanconv.graph.bounded_extents import FOLLOWED, SELECT
from leanconv.graph.convert import FILE_RULES
from leanconv.graph.fields.routes import RULES
from leanconv.graph.file_graph import FileNode
from leanconv.graph.ir import Graph, TensorType
from leanconv.graph.ir import Node as GraphNode
from leanconv.graph.ops import OPS, infer
from leanconv.graph.segments import needs_compiler
from leanconv.planner.decisions import Decision
from leanconv.planner.image_tiles.layout import ImageNetwork, Layout
from leanconv.spec import PLAIN
from leanconv.types import FLOAT32

MADE_UP = "MadeUp"
SHAPE = (1, 2, 96, 80)
_WINDOW: dict[str, Any] = {
    "kernel_shape": (3, 3),
    "strides": (2, 2),
    "pads": (1, 1, 1, 1),
    "dilations": (1, 1),
    "ceil_mode": False,
    "count_include_pad": False,
}
# Operations of one input with their attributes, of an image of some height and width.
CASES: dict[str, Any] = {
    "Relu": lambda _h, _w: {},
    "MaxPool": lambda _h, _w: _WINDOW,
    "ReduceMax": lambda _h, _w: {"axes": (1,), "keepdims": True},
    "ReduceSum": lambda _h, _w: {"axes": (1,), "keepdims": True},
    "Softmax": lambda _h, _w: {"axis": 1},
    "LRN": lambda _h, _w: {"size": 3, "alpha": 0.1, "beta": 0.5, "bias": 1.0},
    "Transpose": lambda _h, _w: {"perm": (0, 1, 3, 2)},
    "Slice": lambda h, w: {
        "starts": (0, 0, 2, 1),
        "steps": (1, 1, 1, 1),
        "sizes": (1, 2, h - 4, w - 2),
    },
    "Reshape": lambda h, w: {"shape": (1, 2, h // 2, 2, w)},
    "Resize": lambda h, w: {
        "mode": "nearest",
        "sizes": (1, 2, 2 * h, 2 * w),
        "scales": (1.0, 1.0, 2.0, 2.0),
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    },
}


@pytest.fixture
def made_up() -> Iterator[Any]:
    """Gives an operation a record: in the one table, and nowhere else."""
    (table,) = (each for each in gc.get_referents(OPS) if isinstance(each, dict))
    yield lambda **traits: table.update({MADE_UP: replace(OPS["Relu"], **traits)})
    table.pop(MADE_UP, None)


def layout(op: str, attributes: Any, tile: int = 24) -> Layout:
    """Windows of a network of one node."""

    def bind(shapes: tuple[tuple[int, ...], ...]) -> Graph:
        x = TensorType(shapes[0], FLOAT32)
        given = MappingProxyType(attributes(*shapes[0][2:]))
        kinds = infer(op, [x], given)
        names = tuple(f"y{number}" for number in range(len(kinds)))
        types = {"x": x, **dict(zip(names, kinds, strict=True))}
        return Graph(("x",), names, (GraphNode(op, ("x",), names, given),), types, {})

    def decide(graph: Graph) -> tuple[Decision, ...]:
        return tuple(Decision({}, PLAIN) for _ in graph.nodes)

    image = ImageNetwork(bind, decide, (SHAPE,), [("x", 2), ("x", 3)])
    return image.layout([tile] * len(image.extents))


def facts(found: Layout) -> Any:
    windows = found.windows
    tiles = [(tile.reads, tile.writes, tile.gives) for tile in windows.tiles()]
    return tiles, found.steps, found.margins


def test_each_kind_of_route_has_a_rule_and_each_rule_an_operation() -> None:
    assert {entry.routes for entry in OPS.values()} == {*RULES, ""}


def test_sizes_are_attributes() -> None:
    for op, entry in OPS.items():
        assert {*entry.size_attributes} <= {*entry.attributes}, op


@pytest.mark.parametrize("like", CASES)
def test_an_operation_is_tiled_by_its_traits(made_up: Any, like: str) -> None:
    entry = OPS[like]
    made_up(
        infer=entry.infer,
        attributes=entry.attributes,
        routes=entry.routes,
        size_attributes=entry.size_attributes,
    )
    expected = layout(like, CASES[like])
    assert expected.windows.count > 6, "more than one window along each axis"
    assert facts(layout(MADE_UP, CASES[like])) == facts(expected)


def test_what_says_nothing_of_its_axes_is_not_cut(made_up: Any) -> None:
    made_up(routes="")
    assert layout(MADE_UP, CASES["Relu"]).windows.count == 1


def test_what_says_nothing_of_its_sizes_is_refused(made_up: Any) -> None:
    entry = OPS["Reshape"]
    made_up(infer=entry.infer, attributes=entry.attributes, routes=entry.routes)
    with pytest.raises(UnsupportedError, match="has another shape for a tile"):
        layout(MADE_UP, CASES["Reshape"])


def test_sums_over_few_results_are_refused(made_up: Any) -> None:
    """The order of a sum follows from how many results lie beside each other."""
    entry = OPS["ReduceMax"]

    def attributes(_h: int, _w: int) -> Any:
        return {"axes": (1, 2), "keepdims": True}

    traits = {"infer": entry.infer, "attributes": entry.attributes, "routes": entry.routes}
    made_up(**traits, reduces=("max", ""))
    assert layout(MADE_UP, attributes, 16).windows.count > 1
    made_up(**traits, reduces=("sum", "Cube"))
    with pytest.raises(UnsupportedError, match="sums in another order"):
        layout(MADE_UP, attributes, 16)


def test_places_in_the_image_are_refused(made_up: Any) -> None:
    entry = OPS["MaxPoolWithIndices"]

    def attributes(_h: int, _w: int) -> Any:
        return {**_WINDOW, "storage_order": 0}

    made_up(infer=entry.infer, attributes=entry.attributes, routes=entry.routes)
    with pytest.raises(UnsupportedError, match="gives places in the image"):
        layout(MADE_UP, attributes)


def test_times_beside_convolutions(made_up: Any) -> None:
    times = [(MADE_UP, 5.0), ("Relu", 3.0), ("Conv", 7.0)]
    for convolves, other in ((False, 8.0), (True, 3.0)):
        made_up(convolves=convolves)
        assert other_ns(times) == other


def test_products_are_compiled_in_a_run() -> None:
    """Of codes as of floats: NumPy would take very long."""
    for op in ("Conv", "QLinearConv", "com.microsoft.QLinearConv", "com.microsoft.QGemm"):
        assert needs_compiler([FileNode(op, (), (), {}, op)]), op
    assert not needs_compiler([FileNode("Sigmoid", (), (), {}, "s")])


def test_each_way_to_follow_what_was_found_has_a_function() -> None:
    assert {rule.follows for rule in FILE_RULES.values()} == {*FOLLOWED, *SELECT, ""}
