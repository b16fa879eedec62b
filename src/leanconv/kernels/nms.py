"""NonMaxSuppression: the boxes of each class that are kept (`select_boxes`), then their list.

There is room for as many as may be kept; a number says how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping

from leanconv.codegen.emitter import Carry, Function
from leanconv.codegen.extents import Extent
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.errors import UnsupportedError
from leanconv.graph.ir import Graph, Node
from leanconv.graph.ops.selection import WRONG
from leanconv.kernels.select_boxes import SelectBoxes
from leanconv.records import dataclass
from leanconv.spec.format import Format
from leanconv.symbolic import least
from leanconv.target import Target
from leanconv.types import INT32, INT64, DType

_MOST_BOXES = 1 << 28  # their places, times 4, have 32 bits


@dataclass(frozen=True)
class ListBoxes(Kernel):
    """Image, class and place of each box that is kept, and how many there are.

    Attributes:
        dtype: of the threshold.
        images, classes: how many there are.
        room: the most boxes of a class that may be kept.
    """

    VARIES = True

    dtype: DType
    images: Extent
    classes: Extent
    room: Extent

    @property
    def operands(self) -> tuple[str, ...]:
        return ("places", "counts", "overlap", "rows", "count")

    @property
    def result_count(self) -> int:
        return 2

    @property
    def chunks(self) -> int:
        return 1

    def emit(self, target: Target) -> str:
        del target  # numbers are moved one by one
        e, k = Function(self.NAME), self
        places, counts = e.pointer(0, INT32.llvm), e.pointer(1, INT64.llvm)
        rows, result = e.pointer(3, INT64.llvm), e.pointer(4, INT64.llvm)
        overlap = e.load(e.pointer(2, self.dtype.llvm))
        fits = overlap.compare("oge", 0.0) & overlap.compare("ole", 1.0)
        with e.chunks(1):
            total: Carry = [e.i64(0)]
            with e.loop("image", k.images, [total]) as image:
                with e.loop("class", k.classes, [total]) as kind:
                    row = image * k.classes + kind
                    count = e.load_index(counts.at(row))
                    with e.when(count.compare("ne", 0)), e.loop("j", count) as j:
                        place = e.convert("zext", e.load(places.at(row * k.room + j)), "i64")
                        to = rows.at((e.index(total[0]) + j) * 3)
                        for column, value in enumerate((image, kind, place)):
                            e.store(value, to.at(column))
                    total[0] = total[0] + count
            e.store(e.select(fits, total[0], e.const("i64", WRONG)), result)
        return e.finish()


def accepts_blocked(node: Node, graph: Graph, block: int) -> bool:
    """Never: boxes are no images."""
    del node, graph, block
    return False


def lower(node: Node, graph: Graph, formats: Mapping[str, Format], target: Target) -> Lowered:
    """Two kernels, with the places of each class between them."""
    del formats
    boxes, scores, most, overlap, *others = node.inputs
    limit, found = ([name for name in others[n : n + 1] if name] for n in range(2))
    dtype, (images, classes, count) = graph.types[boxes].dtype, graph.types[scores].shape
    if count > _MOST_BOXES:
        raise UnsupportedError(
            f"node {node.name or node.key!r}: NonMaxSuppression of {count} boxes; expected at most "
            f"{_MOST_BOXES} of an image; drop those of low scores before it"
        )
    room = least(count, node.attributes["most"])
    select = SelectBoxes(
        dtype,
        target.lanes(dtype),
        bool(node.attributes["centred"]),
        bool(limit),
        bool(found),
        images,
        classes,
        count,
        room,
    )
    places, counts = f"{node.key}.places", f"{node.key}.counts"
    listed = ListBoxes(dtype, images, classes, room)
    calls = (
        Call(select, (boxes, scores, most, overlap, *limit, *found, places, counts)),
        Call(listed, (places, counts, overlap, *node.outputs)),
    )
    number = images * classes
    buffers = {places: number * room * INT32.bytes, counts: number * INT64.bytes}
    return Lowered(calls, {}, buffers, "nms")
