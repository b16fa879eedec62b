"""The forward pass of one step of the ladder: launch by launch, as the report's host code does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from examples.report.formats import Topology
from ladder.kernels import (
    ItemAdd,
    ItemConv,
    ItemDense,
    ItemMean,
    Items,
    Plane,
    RowCopy,
)
from ladder.network import Layer, Version, layers_of
from ladder.partial_sums import ItemPart, TreeSum
from leanconv.codegen import compiler
from leanconv.codegen.host import host
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import Library
from leanconv.runtime.memory import Block
from leanconv.runtime.program import Program, Slot, Stage
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


@dataclass
class Spent:
    """Where the time of forward passes went, in nanoseconds, and what they allocated.

    `by_kernel` has the nanoseconds of each launch.
    """

    passes: int = 0
    total_ns: int = 0
    copies_ns: int = 0
    kernels_ns: int = 0
    allocated_bytes: int = 0
    by_kernel: dict[str, list[int]] = field(default_factory=dict)


class Forward:
    """MobileNetV2 by one version's kernels, one image at a time.

    Args:
        topology: the network.
        params: its weights with batch norm folded, by name.
        version: the switches.
        dtype: "float32" or "float64".
        threads: threads that take part.
        lanes: items of a vector; 1 makes each item a loop of scalars; the host's by default.

    Attributes:
        launches: in order.
        spent: of all calls so far.
    """

    def __init__(
        self,
        topology: Topology,
        params: Mapping[str, np.ndarray],
        version: Version,
        dtype: DType,
        threads: int,
        lanes: int | None = None,
    ) -> None:
        self.topology, self.version, self.dtype = topology, version, dtype
        self._params = params
        self._lanes = lanes or host().lanes(dtype)
        self._items = Items(self._lanes, version.block)
        self._planes = {"image": Plane(*topology.input_shape)}
        self.launches: list[Launch] = []
        self._build(layers_of(topology))
        library = compiler.load([launch.kernel for launch in self.launches])
        self._programs = [self._program(launch, library, threads) for launch in self.launches]
        self._dead = self._last_uses()
        self._fixed = self._allocate_all() if version.up_front else {}
        self.spent = Spent()

    # -- the launches ----------------------------------------------------------------------
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
            self._planes[layer.output] = Plane(*layer.extents, border)
            getattr(self, f"_{layer.op}")(layer, *inputs)

    def _copy(self, x: str, to: str, border: int) -> str:
        """Copy by rows; a whole tensor without borders where none is asked for an addition."""
        plane = self._planes[x]
        self._planes[to] = replace(plane, border=border)
        source, target = plane, self._planes[to]
        if to.endswith(".copy"):
            source = target = Plane(1, 1, plane.elements)
        self.launches.append(Launch(RowCopy(source, target, self.dtype, self._lanes), (x, to)))
        return to

    def _conv(self, layer: Layer, x: str) -> None:
        plain = self.version.own_pointwise and layer.kernel == 1
        if plain and self.version.parts > 1 and self._planes[x].channels > 1:
            self._parts(layer, x)
            return
        kernel = ItemConv(
            self._planes[x],
            self._planes[layer.output],
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
        source, result = self._planes[x], self._planes[layer.output]
        parts = min(self.version.parts, source.channels)
        sums, name = Plane(parts * result.channels, result.height, result.width), layer.output
        self._planes[f"{name}.sums"] = sums
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
        planes = self._planes
        kernel = ItemAdd(planes[a], planes[b], planes[layer.output], self.dtype, self._lanes)
        self.launches.append(Launch(kernel, (a, b, layer.output)))

    def _mean(self, layer: Layer, x: str) -> None:
        kernel = ItemMean(self._planes[x], self.dtype)
        self.launches.append(Launch(kernel, (x, layer.output)))

    def _weights(self, layer: Layer) -> tuple[np.ndarray, np.ndarray]:
        arrays = (self._params[f"{layer.weights}.{kind}"] for kind in ("weight", "bias"))
        w, bias = (np.ascontiguousarray(array, self.dtype).reshape(-1) for array in arrays)
        return w, bias

    def _program(self, launch: Launch, library: Library, threads: int) -> Program:
        slots = iter(range(len(launch.values)))
        operands = tuple(
            Slot(next(slots)) if isinstance(o, str) else o.ctypes.data for o in launch.operands
        )
        stages = [Stage(launch.kernel, operands)]
        return Program(stages, library, len(launch.values), 0, 0, threads, paced=False)

    # -- buffers ---------------------------------------------------------------------------
    def _last_uses(self) -> list[list[str]]:
        """For each launch the values that nothing reads afterwards."""
        last = {v: i for i, launch in enumerate(self.launches) for v in launch.values}
        return [
            [v for v in launch.values if last[v] == i and v not in ("image", "logits")]
            for i, launch in enumerate(self.launches)
        ]

    def _allocate(self, value: str) -> Block:
        """Fresh memory is zero, and so are the borders."""
        return Block(self._planes[value].elements * self.dtype.bytes)

    def _allocate_all(self) -> dict[str, Block]:
        written = dict.fromkeys(launch.values[-1] for launch in self.launches)
        return {value: self._allocate(value) for value in written if value != "logits"}

    # -- running ---------------------------------------------------------------------------
    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Return the logits of one image.

        Args:
            image: contiguous, of `topology.input_shape`, in the version's dtype.
        """
        assert image.shape == self.topology.input_shape
        assert image.dtype == self.dtype
        assert image.flags.c_contiguous
        start = time.perf_counter_ns()
        logits = np.empty(self.topology.classes, self.dtype)
        addresses = {"image": image.ctypes.data, "logits": logits.ctypes.data}
        blocks = dict(self._fixed)
        addresses.update((value, block.address) for value, block in blocks.items())
        spent = self.spent
        for launch, program, dead in zip(self.launches, self._programs, self._dead, strict=True):
            result = launch.values[-1]
            if result not in addresses:
                blocks[result] = self._allocate(result)
                addresses[result] = blocks[result].address
                spent.allocated_bytes += blocks[result].bytes
            program._pacing._rest_until = 0  # stay on all threads whatever disturbs
            elapsed = program.run([addresses[value] for value in launch.values])
            spent.by_kernel.setdefault(launch.label, []).append(elapsed)
            if isinstance(launch.kernel, RowCopy):
                spent.copies_ns += elapsed
            else:
                spent.kernels_ns += elapsed
            if not self.version.up_front:
                for value in dead:
                    del blocks[value], addresses[value]
        spent.total_ns += time.perf_counter_ns() - start
        spent.passes += 1
        return logits
