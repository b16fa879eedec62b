"""A network that needs sizes of some multiple says which."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.errors import InputError, ModelError
from support.hostile import node
from support.onnx_models import model

W = np.ones((3, 3, 3, 3), "f4")


def pyramid(levels: int, join: str = "Concat") -> onnx.ModelProto:
    """Halve a map some times, double it as often, and join it with what it came from."""
    nodes, held = [], {"w": W, "up": np.array([1, 1, 2, 2], "f4")}
    last = "x"
    for level in range(levels):
        nodes.append(node("Conv", f"{last} w", f"d{level}", strides=[2, 2], pads=[1] * 4))
        last = f"d{level}"
    for level in range(levels):
        nodes.append(node("Resize", f"{last} - up", f"u{level}", mode="nearest"))
        last = f"u{level}"
    nodes.append(node(join, f"x {last}", "y", **({"axis": 1} if join == "Concat" else {})))
    return model(nodes, {"x": ("n", 3, "h", "w_")}, ["y"], held)


@pytest.mark.parametrize("join", ["Concat", "Add"])
@pytest.mark.parametrize("levels", [1, 3, 5])
def test_the_multiple_is_named(levels: int, join: str) -> None:
    net = lc.load(pyramid(levels, join), threads=1)
    multiple = 2**levels
    with pytest.raises(ModelError, match=f"sizes that are multiples of {multiple} fit, as 1x3x"):
        net(np.zeros((1, 3, 33, 47), "f4"))
    if levels < 5:
        assert net(np.zeros((1, 3, multiple, 3 * multiple), "f4")).shape[2] == multiple


def test_nothing_is_said_where_no_size_near_fits() -> None:
    nodes = [node("Slice", "x a b c", "z"), node("Add", "x z", "y")]
    held = {"a": np.array([0]), "b": np.array([3]), "c": np.array([2])}
    net = lc.load(model(nodes, {"x": ("n", 3, "h", 8)}, ["y"], held), threads=1)
    with pytest.raises(ModelError) as caught:
        net(np.zeros((1, 3, 9, 8), "f4"))
    assert "multiples" not in str(caught.value)


@pytest.mark.parametrize("sizes", [(32, 33), (31, 32, 1)])
def test_ranges_that_do_not_fit_name_the_size_and_the_multiple(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        lc.load(pyramid(2), threads=1, shapes={"x": (1, 3, sizes, 32)})
    odd = next(size for size in sizes if size % 4)
    assert f"does not take x 1x3x{odd}x32" in str(caught.value)
    assert "sizes that are multiples of 4 fit" in str(caught.value)


def test_a_missing_batch_is_no_value_of_the_batch() -> None:
    net = lc.load(pyramid(1), threads=1)
    with pytest.raises(InputError) as caught:
        net.bind((3, 64, 64))
    assert "give arrays as x[None]" in str(caught.value)
    assert " with " not in str(caught.value)
