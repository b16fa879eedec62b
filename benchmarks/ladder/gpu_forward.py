"""The forward pass of one step of the ladder on a GPU: copies and launches as the report's host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from examples.report.formats import Topology
from ladder.kernels import ItemAdd, ItemConv, ItemDense, ItemMean, Plane, RowCopy
from ladder.launches import Launch, Launches
from ladder.network import Version
from ladder.partial_sums import ItemPart, TreeSum
from leanconv.spec.format import ceil_div
from leanconv.types import DType

_ITEMS = 256  # threads of a block of the kernels that are no convolutions
Start = tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any], int]


class Device(Protocol):
    """Memory of a device, copies and launches."""

    def zeros(self, elements: int) -> Any:
        """A buffer of zeros."""

    def put(self, array: np.ndarray) -> Any:
        """A buffer with an array's elements."""

    def copy(self, to: Any, to_first: int, x: Any, x_first: int, elements: int) -> None:
        """Copy elements between two buffers, by a call of the driver."""

    def launch(
        self, kernel: str, grid: tuple[int, ...], arguments: tuple[Any, ...],
        constants: Mapping[str, Any], warps: int,
    ) -> None:  # fmt: skip
        """Run a kernel of `gpu_kernels`."""

    def get(self, x: Any) -> np.ndarray:
        """A buffer's elements, when all that was started is done."""


class GpuForward(Launches):
    """A version on a device; arguments as of `Launches`.

    Attributes:
        row_copies, kernels: calls of the driver in a pass.
    """

    def __init__(
        self,
        topology: Topology,
        params: Mapping[str, np.ndarray],
        version: Version,
        dtype: DType,
        device: Device,
    ) -> None:
        super().__init__(topology, params, version, dtype)
        self._device = device
        self._constants = [
            [None if isinstance(o, str) else device.put(o) for o in launch.operands]
            for launch in self.launches
        ]
        written = dict.fromkeys(launch.values[-1] for launch in self.launches)
        self._fixed = {v: self._allocate(v) for v in written} if version.up_front else {}
        copies = [x.kernel for x in self.launches if isinstance(x.kernel, RowCopy)]
        self.row_copies = sum(kernel.chunks for kernel in copies)
        self.kernels = len(self.launches) - len(copies)

    def _allocate(self, value: str) -> Any:
        return self._device.zeros(self.planes[value].elements)

    def __call__(self, image: Any) -> Any:
        """The logits of one image, a buffer; the image is one, too."""
        buffers = {"image": image, **self._fixed}
        for launch, constants, dead in zip(self.launches, self._constants, self.dead, strict=True):
            result = launch.values[-1]
            if result not in buffers:
                buffers[result] = self._allocate(result)
            self._run(launch, [
                buffers[o] if isinstance(o, str) else held
                for o, held in zip(launch.operands, constants, strict=True)
            ])  # fmt: skip
            if not self.version.up_front:
                for value in dead:
                    del buffers[value]
        return buffers["logits"]

    def _run(self, launch: Launch, operands: list[Any]) -> None:
        if isinstance(launch.kernel, RowCopy):
            self._copy_rows(launch.kernel, *operands)
            return
        name, grid, arguments, constants, warps = _STARTS[type(launch.kernel)](launch.kernel)
        self._device.launch(name, grid, (*operands, *arguments), constants, warps)

    def _copy_rows(self, kernel: RowCopy, x: Any, y: Any) -> None:
        """A call of the driver for each row, as the report has cudaMemcpy."""
        a, b = kernel.x, kernel.y
        for c in range(a.channels):
            for h in range(a.height):
                to, at = (c * p.size + h * p.row + p.first() for p in (b, a))
                self._device.copy(y, to, x, at, a.width)


# -- kernels and their arguments behind the buffers ----------------------------------------------
def _conv(k: ItemConv) -> Start:
    first = k.x.first(k.kernel // 2)
    arguments = (k.x.row, k.x.size, first, k.y.row, k.y.size, k.y.first(), k.y.height, k.y.width,
                 k.y.channels, k.x.channels // k.groups, k.y.channels // k.groups,
                 k.stride)  # fmt: skip
    constants = {"KERNEL": k.kernel, "BLOCK": k.items.block, "CLIP": k.clip,
                 "PER_CHANNEL": k.per_channel, "PLAIN": k.plain}  # fmt: skip
    grid = (_blocks(k.y, k.items.block), k.y.channels if k.per_channel else 1)
    return "item_conv", grid, arguments, constants, k.items.block**2 // 32


def _part(k: ItemPart) -> Start:
    each = ceil_div(k.x.channels, k.parts)
    arguments = (k.x.row, k.x.size, k.x.first(), k.y.row, k.y.size, k.y.height, k.y.width,
                 k.outputs, k.x.channels, each)  # fmt: skip
    grid = (_blocks(k.y, k.items.block), k.outputs, k.parts)
    return "item_part", grid, arguments, {"BLOCK": k.items.block}, k.items.block**2 // 32


def _tree(k: TreeSum) -> Start:
    parts = k.x.channels // k.y.channels
    pixels = k.y.height * k.y.width
    arguments = (k.x.size, k.y.row, k.y.size, k.y.first(), k.y.width, pixels, k.y.channels, parts)
    constants = {"PARTS": 1 << (parts - 1).bit_length(), "CLIP": k.clip, "ITEMS": _ITEMS}
    return "tree_sum", (ceil_div(pixels, _ITEMS), k.y.channels), arguments, constants, 8


def _add(k: ItemAdd) -> Start:
    pixels = k.y.height * k.y.width
    places = [n for p in (k.a, k.b, k.y) for n in (p.row, p.size, p.first())]
    grid = (ceil_div(pixels, _ITEMS), k.y.channels)
    return "item_add", grid, (*places, k.y.width, pixels), {"ITEMS": _ITEMS}, 8


def _mean(k: ItemMean) -> Start:
    arguments = (k.x.row, k.x.size, k.x.first(), k.x.height, k.x.width, k.x.channels)
    return "item_mean", (ceil_div(k.x.channels, _ITEMS),), arguments, {"ITEMS": _ITEMS}, 8


def _dense(k: ItemDense) -> Start:
    grid = (ceil_div(k.outputs, _ITEMS),)
    return "item_dense", grid, (k.inputs, k.outputs), {"ITEMS": _ITEMS}, 8


def _blocks(y: Plane, block: int) -> int:
    return ceil_div(y.height, block) * ceil_div(y.width, block)


_STARTS: dict[type, Callable[[Any], Start]] = {
    ItemConv: _conv,
    ItemPart: _part,
    TreeSum: _tree,
    ItemAdd: _add,
    ItemMean: _mean,
    ItemDense: _dense,
}
