"""Write convolutional networks as ONNX, with seeded random weights that behave like trained ones.

A network whose activations vanish, explode or forget the image proves nothing: every engine agrees
on zeros, and none on infinities. The builder therefore follows mean and variance of every channel
analytically while it writes the graph. Weights are normal with the variance that gives every layer
an output of variance 1 (He et al. 2015, arXiv 1502.01852, for inputs as they are expected to be),
biases take the expected mean away, and the running statistics of a batch norm lie near the
statistics that its input is expected to have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FloatArray = NDArray[np.float32]
Stats = NDArray[np.float64]
IntPair = int | tuple[int, int]
Padding = int | tuple[int, int, int, int]

DEFAULT_OPSET = 17
_OLDEST_OPSET, _NEWEST_OPSET = 7, 22


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the graph being written.

    Attributes:
        name: its name in the file.
        mean: expected mean of each channel (axis 1), `(c,)`.
        var: expected variance of each channel, `(c,)`.
    """

    name: str
    mean: Stats
    var: Stats

    @property
    def channels(self) -> int:
        """The size of axis 1."""
        return len(self.mean)


def pair(value: IntPair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _ir_version(opset: int) -> int:
    """Return the format version that was current when `opset` came out."""
    if opset < 9:
        return 3
    return {9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8}.get(opset, 9)


class NetBuilder:
    """Collect the nodes and weights of one network and turn them into an `onnx.ModelProto`.

    Args:
        name: name of the graph.
        seed: seed of the random weights.
        opset: ONNX operator set to write, 7 to 22. Old spellings are used where the operator set
            asks for them (Clip with attributes before 11, axes as attributes before 13 or 18,
            weights listed among the graph's inputs before 9).
        params: weights by name instead of random ones. Every weight the network asks for must be
            there, in the shape it asks for.

    Raises:
        ValueError: `opset` is outside 7 to 22.
    """

    def __init__(
        self,
        name: str,
        *,
        seed: int = 0,
        opset: int = DEFAULT_OPSET,
        params: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        if not _OLDEST_OPSET <= opset <= _NEWEST_OPSET:
            raise ValueError(f"opset: got {opset}, expected {_OLDEST_OPSET} to {_NEWEST_OPSET}")
        self.name = name
        self.opset = opset
        self._rng = np.random.default_rng(seed)
        self._params = params
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def param(
        self, name: str, draw: Callable[[], NDArray[Any]], shape: tuple[int, ...]
    ) -> FloatArray:
        """Add a weight to the file and return it: the given one, or without given ones a drawn one.

        Raises:
            KeyError: weights were given, but none of this name.
            ValueError: the weight has another shape.
        """
        if self._params is None:
            data = draw()
        elif name in self._params:
            data = self._params[name]
        else:
            raise KeyError(f"weight {name!r} of shape {shape} is missing from the given weights")
        data = np.ascontiguousarray(data, dtype=np.float32)
        if data.shape != shape:
            raise ValueError(f"weight {name!r}: got shape {data.shape}, expected {shape}")
        self._tensors.append(numpy_helper.from_array(data, name))
        return data

    def constant(self, values: Any, dtype: type[np.generic] = np.int64) -> str:
        """Add an unnamed constant and return the name it got."""
        name = self._fresh("const")
        self._tensors.append(numpy_helper.from_array(np.asarray(values, dtype=dtype), name))
        return name

    def node(
        self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any
    ) -> list[str]:
        """Append a node and return its outputs' names. Attributes that are None are left out."""
        names = [self._fresh(op.lower()) for _ in range(outputs)]
        kept = {key: value for key, value in attributes.items() if value is not None}
        self._nodes.append(
            helper.make_node(op, list(inputs), names, name=f"{op}_{len(self._nodes)}", **kept)
        )
        return names

    def apply(
        self,
        op: str,
        *inputs: Value | str,
        mean: Stats | None = None,
        var: Stats | None = None,
        **attributes: Any,
    ) -> Value:
        """Append a node with one output; its statistics are the first value's unless given."""
        first = next(item for item in inputs if isinstance(item, Value))
        names = [item.name if isinstance(item, Value) else item for item in inputs]
        (output,) = self.node(op, names, **attributes)
        return Value(
            output, first.mean if mean is None else mean, first.var if var is None else var
        )

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def normal(self, shape: tuple[int, ...], std: float) -> FloatArray:
        """Draw from the normal distribution of mean 0."""
        drawn = self._rng.standard_normal(shape, dtype=np.float32)
        drawn *= np.float32(std)
        return drawn

    def uniform(self, low: float, high: float, size: int) -> FloatArray:
        """Draw evenly between `low` and `high`."""
        return self._rng.uniform(low, high, size).astype(np.float32)

    def input(
        self,
        channels: int,
        image: IntPair | None,
        batch: int | None = None,
        name: str = "input",
    ) -> Value:
        """Declare the input, `(batch, channels, height, width)`.

        Args:
            channels: colours of the image.
            image: its height and width, or one number for both; None leaves them symbolic (`H`,
                `W`).
            batch: images at once; None leaves it symbolic (`N`).
            name: the input's name.
        """
        height, width = ("H", "W") if image is None else pair(image)
        shape = ["N" if batch is None else batch, channels, height, width]
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return Value(name, np.zeros(channels), np.ones(channels))

    def output(self, x: Value, shape: Sequence[int | str | None], name: str = "output") -> None:
        """Declare `x` an output called `name`. Sizes that are None are left open."""
        for node in self._nodes:  # rename rather than add an Identity
            for names in (node.input, node.output):
                for index, item in enumerate(names):
                    if item == x.name:
                        names[index] = name
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def build(self, metadata: Mapping[str, str] | None = None) -> onnx.ModelProto:
        """Return the finished model, checked by `onnx.checker` unless it is over 100 MB.

        Raises:
            onnx.checker.ValidationError: the graph is not valid ONNX.
        """
        inputs = list(self._inputs)
        if _ir_version(self.opset) < 4:  # in old files every weight is an input with a default
            inputs += [
                helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in self._tensors
            ]
        graph = helper.make_graph(self._nodes, self.name, inputs, self._outputs)
        model = helper.make_model(
            graph,
            producer_name="leanconv-examples",
            ir_version=_ir_version(self.opset),
            opset_imports=[helper.make_opsetid("", self.opset)],
        )
        size_bytes = 0
        while (
            self._tensors
        ):  # hand the weights over one by one, so that they exist twice only singly
            tensor = self._tensors.pop(0)
            size_bytes += len(tensor.raw_data)
            model.graph.initializer.append(tensor)
        for key, text in (metadata or {}).items():
            model.metadata_props.add(key=key, value=text)
        if size_bytes < 100_000_000:
            onnx.checker.check_model(model)
        return model
