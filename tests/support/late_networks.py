"""Random networks whose extents, operands and branches follow from values, for tests."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from support.control_flow import branch, graph, node
from support.grown_networks import GrownNetwork, UnfitError
from support.onnx_models import Array


class LateNetwork(GrownNetwork):
    """A random network some of whose operations follow from values."""

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

    def _op_filtered(self) -> None:
        """Rows at places that are found, some of the first, and others found among them."""
        x = self._pick("f", (2, 3, 4), filled=True)
        others = self._const(np.arange(1, self._rank(x)))
        flags = self._add("ReduceMax", f"{x} {others}", keepdims=0)
        for _ in range(1 + self._int(2)):
            flags = self._add("Greater", f"{flags} {self._const(np.float32(self._int(3) - 1))}")
            places = self._add("NonZero", flags)
            if self._int(2):
                end, one = self._const(np.array([1 + self._int(5)])), self._const(np.array([1]))
                zero = self._const(np.array([0]))
                places = self._add("Slice", f"{places} {zero} {end} {one}")
            places = self._add("Reshape", f"{places} {self._const(np.array([-1]))}")
            x = self._add("Gather", f"{x} {places}")
            flags = self._add("ReduceMax", f"{x} {others}", keepdims=0)

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
