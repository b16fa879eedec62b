"""Random networks whose extents, operands and branches follow from values, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from support.control_flow import branch, graph, node
from support.onnx_models import Array

FEEDS = 3  # some numbers; others, of other sizes where these are open; zeros
_SIZES = (1, 3, 4, 4), (3, 4, 8, 8)  # of images, from and below
_MOST = 20_000  # elements of a value
_LARGEST = 1e5  # so that float32 holds all sums exactly


class UnfitError(Exception):
    """A node does not fit what is there; another one is tried."""


class LateNetwork:
    """A random network with what goes in and what comes out, by ONNX Runtime.

    It is made node by node: each is computed for all feeds, and is left out where that is refused.
    All numbers are small integers, so that any order of sums gives the same.

    Attributes:
        proto: the model.
        feeds: inputs.
        expected: the outputs for each of them.

    Args:
        seed: of all that is random.
        steps: operations.
    """

    def __init__(self, seed: int, steps: int = 10) -> None:
        self._random, self._count = np.random.default_rng(seed), 0
        self._nodes: list[onnx.NodeProto] = []
        self._held: dict[str, Array] = {}
        self._values: dict[str, list[Array]] = {}
        self._open, random = bool(seed % 2), self._random
        sizes = [random.integers(*_SIZES) for _ in range(FEEDS)]
        images = [random.integers(-3, 4, s if self._open else sizes[0]) for s in sizes]
        self._values["x"] = [x.astype("f4") * (n < 2) for n, x in enumerate(images)]
        makers = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("_op_")]
        for _ in range(steps):
            self._step(makers)
        self._finish()

    # -- parts -------------------------------------------------------------------------------
    def _new(self, hint: str = "v") -> str:
        self._count += 1
        return f"{hint}{self._count}"

    def _const(self, array: Any) -> str:
        name = self._new("k")
        self._held[name] = np.asarray(array)
        return name

    def _int(self, most: int) -> int:
        return int(self._random.integers(most))

    def _pick(
        self, kinds: str = "f", ranks: Sequence[int] = (0, 1, 2, 3, 4, 5), filled: bool = False
    ) -> str:
        """A value of kinds of dtypes and of ranks, rather a late one."""
        names = [
            name
            for name, (first, *rest) in self._values.items()
            if first.dtype.kind in kinds
            and first.ndim in ranks
            and all(array.ndim == first.ndim for array in rest)
            and not (filled and any(not array.size for array in (first, *rest)))
        ]
        if not names:
            raise UnfitError
        return names[-1 - min(self._int(len(names)), self._int(len(names)))]

    def _rank(self, name: str) -> int:
        return self._values[name][0].ndim

    def _axis(self, name: str) -> int:
        if not self._rank(name):
            raise UnfitError
        return self._int(2 * self._rank(name)) - self._rank(name)

    def _number(self, least: int, most: int, shape: tuple[int, ...] = (1,)) -> str:
        """An integer that is data."""
        whole, total, rest, moved, out = (self._new("n") for _ in range(5))
        held = [self._const(np.int64(n)) for n in (most - least + 1, least)]
        nodes = [
            node("Cast", self._pick("fi"), whole, to=TensorProto.INT64),
            node("ReduceSum", whole, total, keepdims=0),
            node("Mod", f"{total} {held[0]}", rest),
            node("Add", f"{rest} {held[1]}", moved),
            node("Reshape", f"{moved} {self._const(np.array(shape, 'i8'))}", out),
        ]
        return self._emit(nodes, out)

    def _numbers(self, least: int, most: int, count: int) -> str:
        """A list of integers that are data."""
        names = " ".join(self._number(least, most) for _ in range(count))
        return self._add("Concat", names, axis=0)

    def _flag(self) -> str:
        number = self._const(np.int64(self._int(4) - 1))
        return self._add("Greater", f"{self._number(-2, 3, ())} {number}")

    def _add(self, op: str, inputs: str, outputs: int = 1, **attributes: Any) -> str:
        names = [self._new() for _ in range(outputs)]
        self._emit([node(op, inputs, " ".join(names), **attributes)])
        return names[0]

    def _emit(self, nodes: Sequence[onnx.NodeProto], only: str = "", captured: str = "") -> str:
        """Compute nodes for all feeds; gives `only`, else the last result.

        Raises:
            UnfitError: ONNX Runtime refuses, or numbers are too large.
        """
        made = [name for each in nodes for name in each.output]
        read = [name for each in nodes for name in each.input if name and name not in made]
        given = [n for n in dict.fromkeys([*read, *captured.split()]) if n not in self._held]
        wanted = [only] if only else made
        proto = self._model(nodes, given, wanted)
        rows = []
        try:
            session = _session(proto)
            for number in range(FEEDS):
                feed = {name: self._values[name][number] for name in given}
                rows.append(session.run(wanted, feed))
        except Exception as error:  # whatever it raises
            raise UnfitError from error
        for array in (array for row in rows for array in row):
            if array.size > _MOST or np.abs(array.astype("f8")).max(initial=0) > _LARGEST:
                raise UnfitError
        self._nodes += nodes
        self._values.update(zip(wanted, map(list, zip(*rows, strict=True)), strict=True))
        return wanted[-1]

    def _model(
        self, nodes: Sequence[onnx.NodeProto], given: Sequence[str], wanted: Sequence[str]
    ) -> onnx.ModelProto:
        ends = [onnx.ValueInfoProto(name=name) for name in wanted]
        inputs = []
        for name in given:
            first = self._values[name][0]
            open_ = self._open or name != "x"
            shape = [n if n == 3 or not open_ else f"{name}{i}" for i, n in enumerate(first.shape)]
            kind = helper.np_dtype_to_tensor_dtype(first.dtype)
            inputs.append(helper.make_tensor_value_info(name, kind, shape if name == "x" else None))
        held = [numpy_helper.from_array(array, name) for name, array in self._held.items()]
        whole = helper.make_graph(list(nodes), "late", inputs, ends, held)
        return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)

    def _step(self, makers: Sequence[Callable[[], Any]]) -> None:
        """One operation more; what those before it left that do not fit is forgotten."""
        for _ in range(20):
            nodes, values = len(self._nodes), dict(self._values)
            try:
                makers[self._int(len(makers))]()
            except UnfitError:
                del self._nodes[nodes:]
                self._values = values
            else:
                return

    def _finish(self) -> None:
        names = [name for name in self._values if name != "x" and name[0] != "n"]
        ends = names[-5:]
        self.proto = self._model(self._nodes, ["x"], ends)
        for info in self.proto.graph.output:
            kind = helper.np_dtype_to_tensor_dtype(self._values[info.name][0].dtype)
            info.CopyFrom(helper.make_tensor_value_info(info.name, kind, None))
        self.feeds = [{"x": x} for x in self._values["x"]]
        session = _session(self.proto)
        self.expected = [
            dict(zip(ends, session.run(ends, feed), strict=True)) for feed in self.feeds
        ]

    # -- layers ------------------------------------------------------------------------------
    def _conv(self, x: str, channels: int, outputs: int) -> tuple[list[onnx.NodeProto], str]:
        """A convolution whose numbers are whole in any arithmetic; it keeps the map's size."""
        size = 1 + 2 * self._int(2)
        w = self._const(self._random.integers(-1, 2, (outputs, channels, size, size)).astype("f4"))
        low, high = self._const(np.float32(-6)), self._const(np.float32(6))
        made, whole, out = (self._new("c") for _ in range(3))
        return [
            node("Conv", f"{x} {w}", made, pads=[size // 2] * 4),
            node("Round", made, whole),
            node("Clip", f"{whole} {low} {high}", out),
        ], out

    def _op_conv(self) -> None:
        x = self._pick("f", (4,), filled=True)
        nodes, out = self._conv(x, self._values[x][0].shape[1], 1 + self._int(4))
        self._emit(nodes, out)

    def _op_matmul(self) -> None:
        x = self._pick("f", (2, 3, 4), filled=True)
        w = self._random.integers(-1, 2, (self._values[x][0].shape[-1], 3)).astype("f4")
        self._add("MatMul", f"{x} {self._const(w)}")

    def _op_pointwise(self) -> None:
        self._add(str(self._random.choice(["Relu", "Neg", "Abs", "Sign"])), self._pick())

    def _op_pair(self) -> None:
        op = str(self._random.choice(["Add", "Mul", "Max"]))
        self._add(op, f"{self._pick()} {self._pick()}")

    def _op_pool(self) -> None:
        x = self._pick("f", (4,))
        if min(min(array.shape[2:]) for array in self._values[x]) > 1:
            self._add("MaxPool", x, kernel_shape=[2, 2])

    def _op_transpose(self) -> None:
        x = self._pick("fib", (2, 3, 4))
        self._add("Transpose", x, perm=self._random.permutation(self._rank(x)).tolist())

    def _op_maps(self) -> None:
        shape = [[1, 1, 1, -1], [1, 1, -1, 1], [-1, 1, 1, 1]][self._int(3)]
        self._add("Reshape", f"{self._pick()} {self._const(np.array(shape))}")

    # -- what depends on values --------------------------------------------------------------
    def _op_places(self) -> None:
        places = self._add("NonZero", self._pick("fib"))
        self._add("Cast", places, to=TensorProto.FLOAT)

    def _op_masked(self) -> None:
        x = self._pick("f", (1, 2, 3, 4))
        flags = self._add("Greater", f"{x} {self._const(np.float32(self._int(3) - 1))}")
        places = self._add("Transpose", self._add("NonZero", flags), perm=[1, 0])
        found = self._add("GatherND", f"{x} {places}")
        self._add("ScatterND", f"{x} {places} {self._add('Neg', found)}")

    def _op_unique(self) -> None:
        x = self._pick("f", (1, 2, 3, 4), filled=True)
        given: dict[str, int] = {"axis": self._axis(x)} if self._int(2) else {}
        self._add("Unique", x, 1 + self._int(4), sorted=self._int(2), **given)

    def _op_compress(self) -> None:
        x = self._pick("f", (2, 3, 4))
        axis = self._int(self._rank(x))
        others = self._const(np.array([n for n in range(self._rank(x)) if n != axis]))
        sums = self._add("ReduceSum", f"{x} {others}", keepdims=0)
        flags = self._add("Greater", f"{sums} {self._const(np.float32(0))}")
        self._add("Compress", f"{x} {flags}", axis=axis)

    def _op_top(self) -> None:
        x = self._pick("f", (1, 2, 3, 4))
        axis = self._axis(x)
        most = min(array.shape[axis] for array in self._values[x])
        self._add("TopK", f"{x} {self._number(0, most)}", 2, axis=axis)

    def _op_sliced(self) -> None:
        x = self._pick("fi", (1, 2, 3, 4))
        axes = self._const(self._random.permutation(self._rank(x))[:2])
        count = self._held[axes].size
        ends = f"{self._numbers(-2, 2, count)} {self._numbers(-1, 6, count)}"
        steps = self._const(self._random.choice([1, 2, -1], count))
        self._add("Slice", f"{x} {ends} {axes} {steps}")

    def _op_shaped(self) -> None:
        x = self._pick("f")
        split = self._add("Concat", f"{self._number(1, 3)} {self._const(np.array([-1]))}", axis=0)
        self._add("Reshape", f"{x} {split}")

    def _op_repeated(self) -> None:
        x = self._pick("f", (1, 2, 3))
        self._add("Tile", f"{x} {self._numbers(0, 2, self._rank(x))}")

    def _op_expanded(self) -> None:
        self._add("Expand", f"{self._pick()} {self._numbers(1, 2, 4)}")

    def _op_made(self) -> None:
        counted = self._add("Range", " ".join(self._number(n, n + 4, ()) for n in (-2, 1, 1)))
        filled = self._add("ConstantOfShape", self._numbers(0, 3, 2))
        self._add("Add", f"{self._add('Cast', counted, to=1)} {self._add('ReduceSum', filled)}")

    def _op_padded(self) -> None:
        x = self._pick("f", (1, 2, 4))
        self._add("Pad", f"{x} {self._numbers(0, 2, 2 * self._rank(x))}")

    def _op_summed(self) -> None:
        x = self._pick("f", (1, 2, 3, 4))
        self._add("ReduceSum", f"{x} {self._number(-self._rank(x), self._rank(x) - 1)}")

    def _op_boxes(self) -> None:
        x = self._pick("f", filled=True)
        least = min(array.size for array in self._values[x]) // 4 * 4
        if not least:
            raise UnfitError
        ends = [self._const(np.array(n)) for n in ([-1], [0], [least], [1, -1, 4], [2], [1, 1, -1])]
        flat = self._add("Reshape", f"{x} {ends[0]}")
        boxes = self._add(
            "Reshape", f"{self._add('Slice', f'{flat} {ends[1]} {ends[2]}')} {ends[3]}"
        )
        sums = self._add("ReduceSum", f"{boxes} {ends[4]}", keepdims=0)
        scores = self._add("Reshape", f"{sums} {ends[5]}")
        overlap = self._const(np.array([0.45], "f4"))
        kept = self._add("NonMaxSuppression", f"{boxes} {scores} {self._number(0, 5)} {overlap}")
        which = self._add("Gather", f"{kept} {self._const(2)}", axis=1)
        self._add("Gather", f"{boxes} {which}", axis=1)

    # -- graphs inside -----------------------------------------------------------------------
    def _inside(self, x: str, like: Array) -> tuple[list[onnx.NodeProto], str]:
        """Nodes that keep the shape of x."""
        if like.ndim == 4 and like.shape[1]:
            return self._conv(x, like.shape[1], like.shape[1])
        out, made = self._new("b"), self._new("b")
        one = self._const(np.float32(self._int(3) - 1))
        return [node("Add", f"{x} {one}", made), node("Neg", made, out)], out

    def _op_branches(self) -> None:
        x = self._pick()
        nodes, out = self._inside(x, self._values[x][0])
        places, cast = self._new("b"), self._new("b")
        others = [node("NonZero", x, places), node("Cast", places, cast, to=1)]
        either = branch(self._flag(), self._new(), graph(nodes, out), graph(others, cast))
        self._emit([either], captured=x)

    def _op_loop(self) -> None:
        """A loop that data ends; it stacks sums."""
        x = self._pick()
        i, on, state, more, total = (self._new("b") for _ in range(5))
        nodes, out = self._inside(state, self._values[x][0])
        limit = self._const(np.float32(self._int(9)))
        nodes += [
            node("ReduceSum", out, total, keepdims=0),
            node("Less", f"{total} {limit}", more),
        ]
        inputs = {i: "int64", on: "bool", state: "float"}
        body = graph(nodes, f"{more} {out} {total}", inputs, kinds={more: "bool"})
        start = f"{self._number(0, 4, ())} {self._flag()} {x}"
        self._emit([node("Loop", start, f"{self._new()} {self._new()}", body=body)])

    def _op_lists(self) -> None:
        x = self._pick("f", (1, 2, 3, 4))
        axis, parts, out = self._int(self._rank(x)), self._new("z"), self._new()
        split = node("SplitToSequence", f"{x} {self._number(1, 3, ())}", parts, axis=axis)
        if self._int(2):
            self._emit([split, node("ConcatFromSequence", parts, out, axis=axis)], out)
        else:
            place = self._number(-1, 0, ())
            self._emit([split, node("SequenceAt", f"{parts} {place}", out)], out)


def _session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers)
