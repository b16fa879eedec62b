"""The launches of one step of the ladder: which kernel on which planes, in the report's order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from examples.report.formats import Topology
from ladder.kernels import ItemAdd, ItemConv, ItemDense, ItemMean, Items, Plane, RowCopy
from ladder.network import Layer, Version, layers_of
from ladder.partial_sums import ItemPart, TreeSum
from leanconv.codegen.kernel import Kernel
from leanconv.types import DType


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel and its operands: names of values, and arrays of weights."""

    kernel: Kernel
    operands: tuple[str | np.ndarray, ...]

    @property
    def label(self) -> str:
        """What a profile calls it: the report's own kernels, as far as they have a name there."""
        kernel = self.kernel
        if not isinstance(kernel, ItemConv):
            return _LABELS[type(kernel)]
        if kernel.groups > 1:
            return "depthwise"
        return "1x1" if kernel.plain else "convolution"

    @property
    def values(self) -> tuple[str, ...]:
        """The operands that are values; the last one is written."""
        return tuple(o for o in self.operands if isinstance(o, str))


_LABELS: dict[type[Kernel], str] = {
    RowCopy: "copies of rows",
    ItemAdd: "addition",
    ItemMean: "global average",
    ItemDense: "dense",
    ItemPart: "1x1, parts",
    TreeSum: "1x1, tree",
}


class Launches:
    """MobileNetV2 by one version's kernels, one image at a time.

    Args:
        topology: the network.
        params: its weights with batch norm folded, by name.
        version: the switches.
        dtype: "float32" or "float64".
        lanes: items of a vector.

    Attributes:
        launches: in order.
        planes: where every value lies, by name.
        dead: for each launch the values that nothing reads afterwards.
    """

    def __init__(
        self,
        topology: Topology,
        params: Mapping[str, np.ndarray],
        version: Version,
        dtype: DType,
        lanes: int = 1,
    ) -> None:
        self.topology, self.version, self.dtype = topology, version, dtype
        self._params = params
        self._lanes = lanes
        self._items = Items(lanes, version.block)
        self.planes = {"image": Plane(*topology.input_shape)}
        self.launches: list[Launch] = []
        self._build(layers_of(topology))
        self.dead = self._last_uses()

    def _build(self, layers: list[Layer]) -> None:
        reach: dict[str, int] = {}
        for layer in layers:
            for x in layer.inputs:
                reach[x] = max(reach.get(x, 0), layer.kernel // 2)
        copies = self.version.padded_copies
        if not copies and reach["image"]:
            self._copy("image", "image.padded", reach["image"])
        for layer in layers:
            inputs = list(layer.inputs)
            if copies and layer.op in ("conv", "dense"):
                inputs = [self._copy(inputs[0], f"{layer.output}.padded", layer.kernel // 2)]
            elif copies and layer.op == "add":
                inputs[0] = self._copy(inputs[0], f"{layer.output}.copy", 0)
            elif inputs[0] == "image":
                inputs = ["image.padded"]
            border = 0 if copies else reach.get(layer.output, 0)
            self.planes[layer.output] = Plane(*layer.extents, border)
            getattr(self, f"_{layer.op}")(layer, *inputs)

    def _copy(self, x: str, to: str, border: int) -> str:
        """Copy by rows; a whole tensor without borders where none is asked for an addition."""
        plane = self.planes[x]
        self.planes[to] = replace(plane, border=border)
        source, target = plane, self.planes[to]
        if to.endswith(".copy"):
            source = target = Plane(1, 1, plane.elements)
        self.launches.append(Launch(RowCopy(source, target, self.dtype, self._lanes), (x, to)))
        return to

    def _conv(self, layer: Layer, x: str) -> None:
        plain = self.version.own_pointwise and layer.kernel == 1
        if plain and self.version.parts > 1 and self.planes[x].channels > 1:
            self._parts(layer, x)
            return
        kernel = ItemConv(
            self.planes[x],
            self.planes[layer.output],
            layer.kernel,
            layer.stride,
            layer.groups,
            layer.clip,
            self.dtype,
            self._items,
            self.version.per_channel,
            plain,
        )
        self.launches.append(Launch(kernel, (x, *self._weights(layer), layer.output)))

    def _parts(self, layer: Layer, x: str) -> None:
        """A 1 x 1 convolution in parts of its channels, and the tree that adds them."""
        source, result = self.planes[x], self.planes[layer.output]
        parts = min(self.version.parts, source.channels)
        sums, name = Plane(parts * result.channels, result.height, result.width), layer.output
        self.planes[f"{name}.sums"] = sums
        w, bias = self._weights(layer)
        part = ItemPart(source, sums, parts, self.dtype, self._items)
        tree = TreeSum(sums, result, layer.clip, self.dtype, self._lanes)
        self.launches.append(Launch(part, (x, w, f"{name}.sums")))
        self.launches.append(Launch(tree, (f"{name}.sums", bias, name)))

    def _dense(self, layer: Layer, x: str) -> None:
        """As a 1 x 1 convolution of one pixel, until the 1 x 1 kernels are their own."""
        if not self.version.own_pointwise:
            self._conv(layer, x)
            return
        w, bias = self._weights(layer)
        turned = np.ascontiguousarray(w.reshape(bias.size, -1).T)
        kernel = ItemDense(turned.shape[0], bias.size, self.dtype, self._lanes)
        self.launches.append(Launch(kernel, (x, turned, bias, layer.output)))

    def _add(self, layer: Layer, a: str, b: str) -> None:
        planes = self.planes
        kernel = ItemAdd(planes[a], planes[b], planes[layer.output], self.dtype, self._lanes)
        self.launches.append(Launch(kernel, (a, b, layer.output)))

    def _mean(self, layer: Layer, x: str) -> None:
        kernel = ItemMean(self.planes[x], self.dtype)
        self.launches.append(Launch(kernel, (x, layer.output)))

    def _weights(self, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
        arrays = (self._params[f"{layer.weights}.{kind}"] for kind in ("weight", "bias"))
        w, bias = (np.ascontiguousarray(array, self.dtype).reshape(-1) for array in arrays)
        return w, bias

    def _last_uses(self) -> list[list[str]]:
        """For each launch the values that nothing reads afterwards."""
        last = {v: i for i, launch in enumerate(self.launches) for v in launch.values}
        return [
            [v for v in launch.values if last[v] == i and v not in ("image", "logits")]
            for i, launch in enumerate(self.launches)
        ]
