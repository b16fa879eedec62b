"""Random networks that grow node by node, with what ONNX Runtime makes of each, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from support.control_flow import node
from support.onnx_models import Array

FEEDS = 3  # some numbers; others, of other sizes where these are open; zeros
_SIZES = (1, 3, 4, 4), (3, 4, 8, 8)  # of images, from and below
_MOST = 20_000  # elements of a value
_LARGEST = 1e5  # so that float32 holds all sums exactly


class UnfitError(Exception):
    """A node does not fit what is there; another one is tried."""


class GrownNetwork:
    """A random network with what goes in and what comes out, by ONNX Runtime.

    Each method of a subclass whose name begins with `_op_` adds an operation. A node is computed
    for all feeds, and left out where ONNX Runtime refuses that.
    The input's numbers are small integers, so that any order of sums gives the same.

    Attributes:
        proto: the model.
        feeds: inputs.
        expected: the outputs for each of them.

    Args:
        seed: of all that is random.
        steps: operations.
    """

    opset, ir_version = 18, 8

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
        while not self._finished():
            self._nodes.pop()

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
            largest = np.abs(array.astype("f8")).max(initial=0)
            if array.size > _MOST or not largest <= _LARGEST:  # NaN does not fit, either
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
        whole = helper.make_graph(list(nodes), "grown", inputs, ends, held)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(whole, opset_imports=opsets, ir_version=self.ir_version)

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

    def _ends(self, names: list[str]) -> list[str]:
        """Which of the values that there are become outputs, in their order."""
        return names[-5:]

    def _finished(self) -> bool:
        """Make the whole model; False where ONNX Runtime contradicts itself about shapes."""
        made = {name for each in self._nodes for name in each.output}
        ends = self._ends([name for name in self._values if name in made and name[0] != "n"])
        self.proto = self._model(self._nodes, ["x"], ends)
        for info in self.proto.graph.output:
            kind = helper.np_dtype_to_tensor_dtype(self._values[info.name][0].dtype)
            info.CopyFrom(helper.make_tensor_value_info(info.name, kind, None))
        self.feeds = [{"x": x} for x in self._values["x"]]
        try:
            session = _session(self.proto)
            found = [session.run(ends, feed) for feed in self.feeds]
        except Exception:  # whatever it raises
            return False
        self.expected = [dict(zip(ends, values, strict=True)) for values in found]
        return True


def _session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers)
