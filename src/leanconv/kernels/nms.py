"""NonMaxSuppression: the boxes of each class that are kept, then their list.

    candidates   places r with score[r] > limit, by falling score; of equal ones the first first
    keep r       if no box k that was kept before has  |r & k| / |r u k| > overlap

Candidates are found by a vector of scores at a time and sorted by keys: few by counting, a vector
at a time, how many come before each of them, many by radix sort. The sides of the boxes that are
kept lie in five arrays, so that a candidate is compared with a vector of them at a time; boxes
without area overlap none, and are in no array. Overlaps are computed as ONNX Runtime does, product
by product in the boxes' dtype, so that the same boxes are kept.

A class is never divided: chunks are classes, of one image or of several. There is room for as many
boxes as may be kept; a number says how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from leanconv.codegen.emitter import Carry, Function, Index, Pointer, Value, vector
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import Call, Lowered
from leanconv.codegen.shuffles import any_lane, lane_bits
from leanconv.codegen.tails import where_any
from leanconv.errors import UnsupportedError
from leanconv.graph.ops.selection import WRONG
from leanconv.kernels import PIECE, KernelContext, OfItems
from leanconv.kernels.ordering import RadixSort, count_bytes, key_kind, least_key, sort_key
from leanconv.records import dataclass
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent, least
from leanconv.target import Target
from leanconv.types import INT32, INT64, DType

_FEW = 192  # candidates that are sorted by counting
_SIDES = 5  # left, right, top, bottom, area


@dataclass(frozen=True)
class SelectBoxes(OfItems):
    """For each class of each image the places of the boxes that are kept, and how many.

    Attributes:
        dtype: of boxes and scores.
        lanes: of a vector of them.
        centred: whether boxes are (x, y, width, height), not two corners (y, x, y, x).
        limited: whether there is a score that candidates exceed.
        counted: whether a number says how many of the boxes of the only class are there.
        images, classes, boxes: how many there are.
        room: the most boxes of a class that may be kept.
    """

    VARIES = True
    result_count = 2

    dtype: DType
    lanes: int
    centred: bool
    limited: bool
    counted: bool
    images: Extent
    classes: Extent
    boxes: Extent
    room: Extent

    @property
    def operands(self) -> tuple[str, ...]:
        limit, found = ("limit",) * self.limited, ("found",) * self.counted
        return ("boxes", "scores", "most", "overlap", *limit, *found, "places", "counts")

    @property
    def items(self) -> int:
        """Classes of all images."""
        return self.images * self.classes

    @property
    def group(self) -> int:
        return ceil_div(PIECE, self.boxes)

    @property
    def flops(self) -> int:
        return self.items * self.boxes

    @property
    def keys_bytes(self) -> int:
        """Scratch for the keys of all boxes of a class, whole vectors of them."""
        return aligned((self.boxes + self.lanes) * self.dtype.bytes)

    @property
    def places_bytes(self) -> int:
        """Scratch for the places of all boxes of a class."""
        return aligned((self.boxes + self.lanes) * INT32.bytes)

    @property
    def side_bytes(self) -> int:
        """Scratch for one side of the boxes that are kept."""
        return aligned((self.room + self.lanes) * self.dtype.bytes)

    @property
    def scratch_bytes(self) -> int:
        counts = count_bytes(self.dtype.bytes)
        return counts + 2 * (self.keys_bytes + self.places_bytes) + _SIDES * self.side_bytes

    def emit(self, target: Target) -> str:
        del target  # `lanes` says what there is to know
        return _Nest(self).emit()


class _Nest:
    def __init__(self, kernel: SelectBoxes) -> None:
        self.k, self.e, self.lanes = kernel, Function(kernel.NAME), kernel.lanes
        self.key = key_kind(kernel.dtype)
        self.number, self.numbers = kernel.dtype.llvm, vector(kernel.dtype.llvm, kernel.lanes)
        e, k, at = self.e, kernel, count_bytes(kernel.dtype.bytes)
        self.keys, self.places = [], []
        for _ in range(2):
            self.keys.append(e.scratch.at(at).of(self.key))
            self.places.append(e.scratch.at(at + k.keys_bytes).of(INT32.llvm))
            at = at + (k.keys_bytes + k.places_bytes)
        self.sides = [e.scratch.at(at + n * k.side_bytes).of(self.number) for n in range(_SIDES)]
        self.radix = RadixSort(e, self.keys, self.places, e.scratch.of(INT32.llvm))

    def emit(self) -> str:
        e, k = self.e, self.k
        boxes, scores = e.pointer(0, self.number), e.pointer(1, self.key)
        most = e.smin(e.load_index(e.pointer(2, INT64.llvm)), k.room)
        self.overlap = e.load(e.pointer(3, self.number))
        last = self._last_key()
        given = len(k.operands) - 2
        self.boxes = e.i64(k.boxes)
        if k.counted:
            self.boxes = e.load_index(e.pointer(given - 1, INT64.llvm))
        places, counts = e.pointer(given, INT32.llvm), e.pointer(given + 1, INT64.llvm)
        with k.each_item(e, "row") as row:
            kept: Carry = [e.i64(0)]
            with e.when(most.compare("sgt", 0), [kept]):
                count = self._candidates(scores.at(row * k.boxes), last)
                with e.when(count.compare("ne", 0), [kept]):
                    order = self._sorted(count)
                    source = boxes.at(row // k.classes * (k.boxes * 4))
                    kept[0] = self._kept(source, order, count, most, places.at(row * k.room))
            e.store(kept[0], counts.at(row))
        return e.finish()

    # -- candidates ------------------------------------------------------------------------
    def _key(self, bits: Value) -> Value:
        """The keys of scores, which fall as scores rise; NaN is last."""
        return sort_key(self.e, self.k.dtype, bits ^ least_key(self.k.dtype), largest=False)

    def _last_key(self) -> Value:
        e = self.e
        if not self.k.limited:
            return e.const(self.key, -1 - least_key(self.k.dtype))
        limit = e.load(e.pointer(4, self.number))
        last = self._key(e.convert("bitcast", limit, self.key)) - 1
        return e.select(
            limit.compare("ord", limit), last, e.const(self.key, least_key(self.k.dtype))
        )

    def _candidates(self, scores: Pointer, last: Value) -> Value:
        """Write the candidates' places, in order, and their keys; gives how many there are."""
        e, k, lanes = self.e, self.k, self.lanes
        kind, limit = vector(self.key, lanes), e.splat(last, lanes)
        count: Carry = [e.i64(0)]
        whole: Value | int = self.boxes // lanes if k.counted else k.boxes // lanes
        for _ in _where_any(e, whole, count):
            with e.loop("vector", whole, [count]) as number:
                key = self._key(e.load(scores.at(number * lanes), kind))
                self._append(count, number * lanes, key.compare("sle", limit))
        done = e.i64(whole * lanes)
        rest = self.boxes - done if k.counted else k.boxes - whole * lanes
        for _ in _where_any(e, rest, count):
            live = e.first_lanes(e.i64(rest), lanes)
            key = self._key(e.masked_load(scores.at(done), kind, live))
            self._append(count, done, key.compare("sle", limit) & live)
        self._write_keys(scores, count[0])
        return count[0]

    def _append(self, count: Carry, first: Value, hits: Value) -> None:
        """Append the places of a vector's lanes that are candidates, without branches."""
        e = self.e
        bits = lane_bits(e, hits)
        with e.when(bits.compare("ne", 0), [count]):
            wide = e.convert("zext", bits, "i64") if self.lanes < 64 else bits
            place = e.convert("trunc", first, INT32.llvm)
            for lane in range(self.lanes):
                e.store(place + lane, self.places[0].at(count[0]))
                bit = (wide // (1 << lane) if lane else wide) & 1
                count[0] = count[0] + bit

    def _write_keys(self, scores: Pointer, count: Value) -> None:
        """The keys of all candidates; those of a last vector that are none come after all."""
        e, lanes = self.e, self.lanes
        with e.when(count.compare("ne", 0)), e.loop("key", count, step=lanes) as at:
            live = e.first_lanes(e.smin(count - at, lanes), lanes)
            places = e.load(self.places[0].at(at), vector(INT32.llvm, lanes))
            key = self._key(e.gather(scores, places, live))
            none = e.const(key.kind, -1 - least_key(self.k.dtype))
            e.store(e.select(live, key, none), self.keys[0].at(at))

    # -- their order -----------------------------------------------------------------------
    def _sorted(self, count: Value) -> Pointer:
        """Sort the candidates; return the address of their places in order."""
        e = self.e
        few = count.compare("ule", _FEW)
        with e.when(few):
            self._rank(count)
        with e.when(few ^ 1):
            flip = least_key(self.k.dtype)
            with e.loop("flip", count, step=self.lanes) as at:
                keys = self.keys[0].at(at)
                e.store(e.load(keys, vector(self.key, self.lanes)) ^ flip, keys)
            self.radix.sort(count)
        return e.select(few, self.places[1], self.places[0])

    def _rank(self, count: Value) -> None:
        """Put each place where as many come before it as do: smaller keys, and equal ones."""
        e, lanes = self.e, self.lanes
        numbers = e.const(vector(INT32.llvm, lanes), range(lanes))
        with e.loop("candidate", count) as i:
            own = e.splat(e.load(self.keys[0].at(i)), lanes)
            here = e.splat(e.convert("trunc", i, INT32.llvm), lanes)
            rank: Carry = [e.i64(0)]
            with e.loop("other", count, [rank], step=lanes) as at:
                keys = e.load(self.keys[0].at(at), own.kind)
                place = numbers + e.splat(e.convert("trunc", at, INT32.llvm), lanes)
                equal = keys.compare("eq", own) & place.compare("slt", here)
                bits = lane_bits(e, keys.compare("slt", own) | equal)
                wide = e.convert("zext", bits, "i64") if lanes < 64 else bits
                rank[0] = rank[0] + e.intrinsic("llvm.ctpop.i64", "i64", wide)
            e.store(e.load(self.places[0].at(i)), self.places[1].at(rank[0]))

    # -- those that are kept ---------------------------------------------------------------
    def _kept(
        self, boxes: Pointer, order: Pointer, count: Value, most: Value, out: Pointer
    ) -> Value:
        """Write the places of the boxes that are kept; gives how many there are."""
        e = self.e
        state: Carry = [e.i64(0), e.i64(0)]  # kept, and of these in the arrays
        done: Carry = [e.const("i1", 0)]
        with e.loop("candidate", count, [state], until=done) as number:
            place = e.load(order.at(number))
            box = self._box(boxes.at(e.index(e.convert("zext", place, "i64")) * 4))
            solid = box[4].compare("ogt", 0.0)
            dropped: Carry = [e.const("i1", 0)]
            with e.when(solid & state[1].compare("ne", 0), [dropped]):
                self._compare(box, state[1], dropped)
            with e.when(dropped[0] ^ 1, [state]):
                e.store(place, out.at(state[0]))
                state[0] = state[0] + 1
                with e.when(solid, [state]):
                    self._insert(box, state[1])
                    state[1] = state[1] + 1
            done[0] = state[0].compare("sge", most)
        return state[0]

    def _box(self, box: Pointer) -> list[Value]:
        """The sides of a box, and its area."""
        e = self.e
        a, b, c, d = (e.load(box.at(n)) for n in range(4))
        if self.k.centred:
            half_width, half_height = c * 0.5, d * 0.5
            left, right, top, bottom = (
                a - half_width,
                a + half_width,
                b - half_height,
                b + half_height,
            )
        else:
            left, right, top, bottom = (
                e.minimum(b, d), e.maximum(b, d), e.minimum(a, c), e.maximum(a, c)
            )  # fmt: skip
        return [left, right, top, bottom, (right - left) * (bottom - top)]

    def _compare(self, box: list[Value], count: Value, dropped: Carry) -> None:
        """Compare a box with those in the arrays, until one overlaps it too much."""
        e, lanes = self.e, self.lanes
        left, right, top, bottom, area = (e.splat(each, lanes) for each in box)
        overlap = e.splat(self.overlap, lanes)
        with e.loop("vector", count, [dropped], step=lanes, until=dropped) as at:
            others = [e.load(side.at(at), self.numbers) for side in self.sides]
            width = e.minimum(right, others[1]) - e.maximum(left, others[0])
            height = e.minimum(bottom, others[3]) - e.maximum(top, others[2])
            shared = width * height
            union = area + others[4] - shared
            real = width.compare("ogt", 0.0) & height.compare("ogt", 0.0)
            real = real & shared.compare("ogt", 0.0) & union.compare("ogt", 0.0)
            dropped[0] = any_lane(e, real & (shared / union).compare("ogt", overlap))

    def _insert(self, box: list[Value], number: Value) -> None:
        """Put a box into the arrays: whole vectors are stored, whose next load need not wait."""
        e, lanes = self.e, self.lanes
        lane: Index = e.index(number & (lanes - 1))
        first = number - lane
        place = e.splat(e.convert("trunc", lane, INT32.llvm), lanes)
        numbers = e.const(vector(INT32.llvm, lanes), range(lanes))
        before, here = numbers.compare("slt", place), numbers.compare("eq", place)
        for side, value in zip(self.sides, box, strict=True):
            old = e.select(before, e.load(side.at(first), self.numbers), e.zero(self.numbers))
            e.store(e.select(here, e.splat(value, lanes), old), side.at(first))


def _where_any(e: Function, count: Value | int, carry: Carry) -> Iterator[None]:
    """`where_any`, of a number that may be known when the kernel runs."""
    if not isinstance(count, Value):
        yield from where_any(e, count, [carry])
        return
    with e.when(count.compare("ne", 0), [carry]):
        yield


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
    operands = ("places", "counts", "overlap", "rows", "count")
    result_count = 2

    dtype: DType
    images: Extent
    classes: Extent
    room: Extent

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


def lower(context: KernelContext) -> Lowered:
    """Two kernels, with the places of each class between them."""
    node, graph, target = context.node, context.graph, context.target
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
