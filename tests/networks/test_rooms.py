"""What is found in rooms, and what is computed of it before it is cut, as ONNX Runtime has it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest

import leanconv as lc
from leanconv.errors import InputError
from leanconv.graph.ir import owner
from leanconv.runtime import program, segmented_program
from leanconv.runtime.memory import Outputs
from leanconv.spec.format import ALIGNMENT
from support.control_flow import node
from support.loops import body, hold, loop
from support.onnx_models import Array, model, reference

R = np.random.default_rng(11)
GUARDED = bool(os.environ.get("TEST_GUARDED"))  # where results have the sizes of plans
HELD = {
    "limit": np.float32(0.5),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "flat": np.array([-1]),
    "many": np.array([9]),
    "high": np.array([2**63 - 1]),
    "column": np.array([1, -1]),
    "scores": np.array([1, 1, -1]),
    "most": np.array([20]),
    "iou": np.array([0.4], "f4"),
    "least": np.array([0.55], "f4"),
}
FILTER = [
    node("Greater", "s limit", "m"),
    node("NonZero", "m", "i"),
    node("Squeeze", "i zero", "k"),
    node("Gather", "b k", "bk"),
    node("Gather", "s k", "sk"),
]
BOXES = [
    node("Unsqueeze", "bk zero", "b3"),
    node("Reshape", "sk scores", "s3"),
    node("NonMaxSuppression", "b3 s3 most iou", "kept"),
]


def feeds(count: int) -> list[dict[str, Array]]:
    """Boxes by two corners and scores: of some that count, of none, of all, of one."""
    corners = R.random((count, 2), "f4") * 4
    b = np.concatenate((corners, corners + 0.5 + R.random((count, 2), "f4")), 1)
    s = R.random(count, "f4")
    one = np.zeros(count, "f4")
    one[count // 2] = 1
    return [{"b": b, "s": each} for each in (s, 0 * s, s + 1, one)]


def check(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    given: Sequence[Mapping[str, Array]],
    late: str = "(Cut)",
    opened: bool = False,
) -> None:
    """Compare with ONNX Runtime; all that is left to NumPy is `late`."""
    read = {name for each in nodes for name in each.input}
    held = {name: array for name, array in HELD.items() if name in read}
    shapes: dict[str, Any] = {
        name: tuple(f"{name}0" if opened and not n else extent for n, extent in enumerate(a.shape))
        for name, a in given[0].items()
    }
    proto = model(nodes, shapes, outputs, held)
    for each in proto.graph.output:
        each.ClearField("type")
    for threads in (1, 3):
        network = lc.load(proto, threads=threads)
        first = network.run(given[0])
        for feed in [*given, given[0]]:
            found, expected = network.run(feed), reference(proto, feed)
            for name, array in expected.items():
                assert found[name].dtype == array.dtype
                np.testing.assert_array_equal(found[name], array, name)
                assert found[name].flags.writeable
                assert found[name].flags.c_contiguous
                found[name][...] = 1  # it is the user's
        for name, array in reference(proto, given[0]).items():
            np.testing.assert_array_equal(first[name], array, name)  # no later run wrote there
        assert late in network.explain()
    limited = lc.load(proto, threads=1, memory_limit=network.plan.memory_bytes)
    for feed in given:
        for name, array in reference(proto, feed).items():
            np.testing.assert_array_equal(limited.run(feed)[name], array, name)


@pytest.mark.parametrize("count", [2, 17, 700, 20_000])
@pytest.mark.parametrize("opened", [False, True])
def test_what_is_gathered(count: int, opened: bool) -> None:
    given = feeds(count)
    check(FILTER, ["bk", "sk", "k"], given, opened=opened)
    rows = [*FILTER[:2], node("Transpose", "i", "t", perm=[1, 0]), node("GatherND", "b t", "y")]
    check(rows, ["y"], given, opened=opened)
    check([*rows[:1], node("Compress", "b m", "y", axis=0)], ["y"], given, opened=opened)


def test_what_is_gathered_of_single_elements() -> None:
    nodes = [
        node("Greater", "b limit", "m"),
        node("NonZero", "m", "i"),
        node("Transpose", "i", "t", perm=[1, 0]),
        node("GatherND", "b t", "y"),
        node("Gather", "t zero", "c", axis=1),
        node("Cast", "c", "f", to=1),
        node("Add", "f limit", "z"),
        node("Slice", "t one two one", "w"),
    ]
    check(nodes, ["y", "t", "z", "w"], feeds(60))
    check(nodes, ["y", "i"], feeds(60))


@pytest.mark.parametrize("op", ["Sign", "Reciprocal", "IsNaN", "Sum", "PRelu"])
def test_what_is_computed_of_each(op: str) -> None:
    """Whatever computes each element by itself is computed of the room."""
    others = {"Sum": " limit", "PRelu": " limit"}.get(op, "")
    check([*FILTER, node(op, f"sk{others}", "y")], ["y", "k"], feeds(40))


def test_the_first_of_what_is_found() -> None:
    for ends in ("many", "high"):
        nodes = [
            *FILTER[:2],
            node("Slice", f"i zero {ends} one", "f"),
            node("Reshape", "f flat", "k"),
            node("Gather", "b k", "bk"),
            node("Concat", "bk bk", "y", axis=1),
        ]
        check(nodes, ["y", "k"], feeds(100))


def test_boxes_among_those_that_were_found() -> None:
    last = [
        node("Gather", "kept two", "c", axis=1),
        node("Squeeze", "c one", "w"),
        node("Gather", "bk w", "y"),
        node("Gather", "sk w", "z"),
    ]
    for count in (12, 300):
        check([*FILTER, *BOXES, *last], ["y", "z", "kept"], feeds(count))
        limits = [node("NonMaxSuppression", "b3 s3 most iou least", "kept")]
        check([*FILTER, *BOXES[:2], *limits, *last], ["y", "z"], feeds(count))


def test_what_is_found_among_the_found() -> None:
    again = [
        node("Sub", "sk limit", "d"),
        node("Greater", "d limit", "n"),
        node("NonZero", "n", "j"),
        node("Squeeze", "j zero", "l"),
        node("Gather", "bk l", "y"),
        node("Compress", "sk n", "z", axis=0),
        node("Compress", "bk n", "v", axis=0),
    ]
    given = [{**feed, "s": feed["s"] * 1.7} for feed in feeds(200)]
    check([*FILTER, *again], ["y", "z", "v", "l"], given)


def test_what_follows_from_how_many_there_are_is_late() -> None:
    """A Squeeze of whatever has one element, a Reshape to numbers, what is reduced."""
    nodes = [*FILTER, node("Squeeze", "bk", "y"), node("Shape", "bk", "z")]
    check(nodes, ["y", "z"], feeds(30), late="(Cut, Squeeze, Shape)")
    nodes = [*FILTER, node("ReduceSum", "sk", "y", keepdims=0), node("Neg", "sk", "z")]
    given = [{**feed, "s": np.round(feed["s"] * 8)} for feed in feeds(30)]
    check(nodes, ["y", "z"], given, late="(Cut, ReduceSum)")


def test_places_that_are_outside_of_what_they_are_of() -> None:
    """Those behind the found are not looked at."""
    nodes = [node("Greater", "s limit", "m"), node("NonZero", "m", "i"), node("Add", "i two", "k")]
    nodes += [node("Squeeze", "k zero", "l"), node("Gather", "b l", "y")]
    network = lc.load(model(nodes, {"b": (9, 4), "s": (9,)}, ["y"], HELD), threads=1)
    b, s = R.random((9, 4), "f4"), np.zeros(9, "f4")
    s[[1, 4, 6]] = 1
    np.testing.assert_array_equal(network.run({"b": b, "s": s})["y"], b[[3, 6, 8]])
    s[7] = 1
    with pytest.raises(InputError, match="9"):
        network.run({"b": b, "s": s})


def test_names_of_the_file_stay_its_own() -> None:
    nodes = [
        node("Neg", "s", "k#room"),
        *FILTER[:4],
        node("Neg", "bk", "bk#room"),
        node("Neg", "sk#room", "y"),
    ]
    nodes[-1].input[0] = "k#room"
    check(nodes, ["k", "bk", "bk#room", "y"], feeds(20))


def select(b: str = "b") -> list[onnx.NodeProto]:
    return [
        node("Greater", "s limit", "m"),
        node("Compress", f"{b} m", "rows", axis=1),
        node("Cast", f"{b}", "flags", to=9),
        node("Reshape", "flags flat", "listed"),
        node("Compress", f"{b} listed", "elements"),
        node("NonZero", b, "places"),
        node("NonZero", "m", "i"),
        node("Squeeze", "i zero", "k"),
        node("Gather", "c k", "gathered"),
    ]


SELECTED = ["rows", "elements", "places", "gathered"]


def selected(share: float) -> dict[str, Array]:
    """Large arrays, of which a share is kept."""
    s = (R.random(301) < share).astype("f4")
    b = R.random((2, 301, 77), "f4") * (R.random((2, 301, 77)) < share)
    return {"s": s, "b": b.astype("f4"), "c": R.random((301, 131), "f4")}


def check_selected(
    nodes: Sequence[onnx.NodeProto],
    held: Mapping[str, Any] = {},
    outputs: Sequence[str] = SELECTED,
    **options: Any,
) -> list[lc.Network]:
    """Compare with ONNX Runtime; results have no memory but for what is found."""
    given = [selected(share) for share in (0.5, 0.0, 0.1, 1.0, 0.5)]
    shapes = {name: array.shape for name, array in given[0].items()}
    read = {name for each in nodes for name in each.input}
    constants = {**{name: HELD[name] for name in ("limit", "zero", "flat") if name in read}, **held}
    proto = model(nodes, shapes, outputs, constants)
    for each in proto.graph.output:
        each.ClearField("type")
    networks = [lc.load(proto, threads=threads, **options) for threads in (1, 3)]
    for feed in given:
        expected = reference(proto, feed)
        for network in networks:
            for _ in range(2):
                for name, array in network.run(feed).items():
                    np.testing.assert_array_equal(array, expected[name], name)
                    assert GUARDED or owner(array).nbytes <= array.nbytes + ALIGNMENT
                    array[...] = 7  # it is the user's
    return networks


def test_large_results_are_made_when_they_are_counted() -> None:
    networks = check_selected(select())
    networks += check_selected([*select(), node("Neg", "b", "all")], outputs=[*SELECTED, "all"])
    assert all(each.used_bytes == each.plan.memory_bytes for each in networks)


@pytest.mark.skipif(GUARDED, reason="whole rooms have guard pages then")
def test_nothing_is_written_beside_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[tuple[Array, int]] = []

    def maker(self: Outputs, axes: int, dtype: Any) -> Callable[..., Any]:
        del self, axes

        def make(shape: tuple[int, ...]) -> tuple[Array, int]:
            size = int(np.prod(shape)) * dtype.bytes
            block = np.full(size + 2 * ALIGNMENT, 171, np.uint8)
            blocks.append((block, size))
            found: Array = np.ndarray(shape, dtype.numpy, block, ALIGNMENT)
            return found.copy() if not size else found, block.ctypes.data + ALIGNMENT

        return make

    monkeypatch.setattr(Outputs, "maker_of_any", maker)
    feeds = [selected(share) for share in (0.5, 0.0, 0.1, 1.0)]
    shapes = {name: array.shape for name, array in feeds[0].items()}
    held = {name: HELD[name] for name in ("limit", "zero", "flat")}
    for threads in (1, 3):
        network = lc.load(model(select(), shapes, SELECTED, held), threads=threads)
        for feed in feeds:
            network.run(feed)
    assert len(blocks) == 2 * len(feeds) * len(SELECTED)
    for block, size in blocks:
        beside = block[:ALIGNMENT], block[ALIGNMENT + size :]
        assert all((each == 171).all() for each in beside)


@pytest.mark.parametrize("piece_ns", [0, program.PIECE_NS])
def test_large_results_of_runs_in_pieces(monkeypatch: pytest.MonkeyPatch, piece_ns: int) -> None:
    monkeypatch.setattr(program, "LONG_NS", 0)
    monkeypatch.setattr(program, "PIECE_NS", piece_ns)
    check_selected(select())


@pytest.mark.parametrize("long_ns", [0, segmented_program.LONG_NS])
def test_large_results_behind_loops(monkeypatch: pytest.MonkeyPatch, long_ns: int) -> None:
    """They are made between the native calls of such a program."""
    hold(monkeypatch)
    monkeypatch.setattr(segmented_program, "LONG_NS", long_ns)
    steps = [node("Neg", "v", "u"), node("Relu", "u", "r"), node("Add", "r v", "t")]
    nodes = [loop("n true b", "positive", body(steps, "t", "i on v")), *select("positive")]
    check_selected(nodes, {"n": np.int64(6), "true": np.array(True)})


def test_large_results_where_weights_are_streamed() -> None:
    w = np.eye(77, dtype="f4")
    nodes = [node("MatMul", "b w", "same"), *select("same")]
    networks = check_selected(nodes, {"w": w}, stream_weights=True)
    assert all(each.plan.streamed_bytes for each in networks)
