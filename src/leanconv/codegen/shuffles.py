"""Moves between lanes: transposition of vectors in registers, masks as integers."""

from __future__ import annotations

from leanconv.codegen.emitter import Function, Value, bytes_of, element_of, lanes_of, vector


def _interleave(e: Function, a: Value, b: Value, grain: int, segment: int, high: bool) -> Value:
    """Interleave groups of `grain` lanes from the low or high halves of each segment."""
    lanes = lanes_of(a.kind)
    picks: list[int] = []
    for start in range(0, lanes, segment):
        begin = start + (segment // 2 if high else 0)
        for group in range(begin, begin + segment // 2, grain):
            picks += range(group, group + grain)
            picks += range(lanes + group, lanes + group + grain)
    return e.shuffle(a, b, picks)


def interleave(e: Function, vectors: list[Value]) -> list[Value]:
    """All first lanes, in the order of the vectors, then all second ones …, as many vectors."""
    count, lanes = len(vectors), lanes_of(vectors[0].kind)
    if count == 1:
        return vectors
    if count % 2 == 0:
        evens, odds = interleave(e, vectors[::2]), interleave(e, vectors[1::2])
        pairs = [p for i in range(lanes) for p in (i, lanes + i)]
        found = []
        for even, odd in zip(evens, odds, strict=True):
            found += [e.shuffle(even, odd, pairs[:lanes]), e.shuffle(even, odd, pairs[lanes:])]
        return found
    found = []
    for start in range(0, count * lanes, lanes):
        places = [divmod(start + i, count) for i in range(lanes)]  # (lane, vector) of each lane
        mixed, picks = vectors[0], [-1 if v else lane for lane, v in places]
        for number in range(1, count):
            picks = [
                lanes + lane if v == number else picks[i] for i, (lane, v) in enumerate(places)
            ]
            mixed = e.shuffle(mixed, vectors[number], picks)
            picks = [i if v <= number else -1 for i, (_, v) in enumerate(places)]
        found.append(mixed)
    return found


def deinterleave(e: Function, parts: list[Value], phase: int = 0) -> Value:
    """Lanes phase, phase + s, phase + 2s … of s vectors, one after the other."""
    stride, lanes, result = len(parts), lanes_of(parts[0].kind), parts[0]
    if stride == 1:
        return result
    # After part q the lanes that come from parts 0 … q are in place.
    for q in range(1, stride):
        picks = []
        for lane in range(lanes):
            part, inside = divmod(lane * stride + phase, lanes)
            if part == q:
                picks.append(lanes + inside)
            elif part < q:
                picks.append(inside if q == 1 else lane)
            else:
                picks.append(-1)
        result = e.shuffle(result, parts[q], picks)
    return result


def transpose(e: Function, rows: list[Value]) -> list[Value]:
    """Transpose L vectors of L lanes: result j holds lane j of each row, in order.

    First within segments of 16 bytes (interleaving, one instruction each on every vector
    instruction set), then whole segments between vectors: L·log2(L) shuffles.
    """
    lanes = lanes_of(rows[0].kind)
    assert len(rows) == lanes
    if lanes == 1:
        return rows
    segment = max(2, min(lanes, _segment_of(rows[0].kind)))
    columns = _within_segments(e, rows, segment)
    order = _bit_reversed(segment)
    blocks = lanes // segment
    # columns[q*segment + order[k]] holds, in segment s, rows q*segment… of column s*segment + k.
    result: list[Value | None] = [None] * lanes
    for k in range(segment):
        quads = [columns[q * segment + order[k]] for q in range(blocks)]
        for s, column in enumerate(_transpose_segments(e, quads, segment)):
            result[s * segment + k] = column
    return [r for r in result if r is not None]


def transpose_pieces(e: Function, pieces: list[Value]) -> list[Value]:
    """Transpose vectors of one segment of 16 bytes, or of all lanes where those are no more.

    Returns:
        For each lane of a piece, in order, that lane of all pieces.
    """
    segment = lanes_of(pieces[0].kind)
    if segment == 1:
        return pieces
    rows = [joined(e, pieces[i::segment]) for i in range(segment)]
    columns = _within_segments(e, rows, segment)
    return [columns[place] for place in _bit_reversed(segment)]


def joined(e: Function, parts: list[Value]) -> Value:
    """Return vectors one after the other as one; a power of two of them."""
    while len(parts) > 1:
        lanes = 2 * lanes_of(parts[0].kind)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [e.shuffle(a, b, range(lanes)) for a, b in pairs]
    return parts[0]


def _within_segments(e: Function, rows: list[Value], segment: int) -> list[Value]:
    """Transpose squares of rows within each segment; columns are in the order of reversed bits."""
    columns = list(rows)
    grain = 1
    while grain < segment:
        mixed: list[Value | None] = [None] * len(rows)
        for i in range(len(rows)):
            if i % segment & grain:
                continue
            a, b = columns[i], columns[i + grain]
            # Row i's place in its segment says which columns it holds by now: bits below `grain`.
            low = i % segment % grain
            high_bits = i - low
            mixed[high_bits + low] = _interleave(e, a, b, grain, segment, high=False)
            mixed[high_bits + low + grain] = _interleave(e, a, b, grain, segment, high=True)
        columns = [m for m in mixed if m is not None]
        grain *= 2
    return columns


def _bit_reversed(count: int) -> list[int]:
    bits = count.bit_length() - 1
    return [int(f"{i:0{bits}b}"[::-1], 2) if bits else 0 for i in range(count)]


def _transpose_segments(e: Function, vectors: list[Value], segment: int) -> list[Value]:
    """Transpose a square of whole segments between vectors."""
    count = len(vectors)
    step = 1
    while step < count:
        swapped = list(vectors)
        for i in range(count):
            if i & step:
                continue
            a, b = vectors[i], vectors[i + step]
            lanes = lanes_of(a.kind)
            first, second = [], []
            for lane in range(lanes):
                block, inside = divmod(lane, segment)
                if block & step:
                    first.append(lanes + (block - step) * segment + inside)
                    second.append(lanes + block * segment + inside)
                else:
                    first.append(block * segment + inside)
                    second.append((block + step) * segment + inside)
            swapped[i], swapped[i + step] = e.shuffle(a, b, first), e.shuffle(a, b, second)
        vectors = swapped
        step *= 2
    return vectors


def transpose_groups(e: Function, rows: list[Value], grain: int) -> list[Value]:
    """Transpose with groups of `grain` neighbouring lanes as the elements.

    Args:
        e: the function to append to.
        rows: lanes / grain vectors.
        grain: lanes of a group, a power of two.

    Returns:
        Vector j holds group j of each row, in order.
    """
    kind = rows[0].kind
    lanes, size = lanes_of(kind), bytes_of(element_of(kind))
    assert len(rows) * grain == lanes
    if grain == 1:
        return transpose(e, rows)
    if grain * size >= 16:
        return _transpose_segments(e, rows, grain)
    wide = vector("double", lanes // grain)
    transposed = transpose(e, [e.convert("bitcast", row, wide) for row in rows])
    return [e.convert("bitcast", column, kind) for column in transposed]


def _segment_of(kind: str) -> int:
    """Lanes of one segment of 16 bytes."""
    return 16 // bytes_of(element_of(kind))


def halves_fit(kind: str) -> bool:
    """Return whether `columns_of_halves` and `halves_of_columns` take this type."""
    return lanes_of(kind) // _segment_of(kind) in (2, 4)


def columns_of_halves(e: Function, rows: list[Value]) -> list[Value]:
    """Transpose L half vectors of L/2 lanes: result j holds lane j of each row, in order.

    Two half rows fill one vector, so a column costs half of what it does in `transpose`: for 16
    lanes 1 load with an insertion, 2 shuffles within segments and 1 of segments.
    """
    half = lanes_of(rows[0].kind)
    segment = _segment_of(rows[0].kind)
    span = half // segment  # segments of half a row
    found: dict[tuple[int, int], Value] = {}  # by group of 2·segment rows and place in a segment
    for group in range(span):
        first = 2 * segment * group
        joined = [
            e.shuffle(rows[first + i], rows[first + segment + i], range(2 * half))
            for i in range(segment)
        ]
        for place, value in enumerate(_transpose_inside(e, joined)):
            found[group, place] = value
    columns = []
    for column in range(half):
        h, place = divmod(column, segment)
        if span == 1:
            columns.append(found[0, place])
            continue
        # Segments of a group: rows 0 … of columns h = 0, 1, then the next rows of the same.
        picks = [*_lanes(h, segment), *_lanes(span + h, segment)]
        picks += [2 * half + pick for pick in picks]
        columns.append(e.shuffle(found[0, place], found[1, place], picks))
    return columns


def halves_of_columns(e: Function, columns: list[Value]) -> list[Value]:
    """Transpose back: at most L/2 vectors of L lanes become L half rows of L/2 lanes.

    Lane j of half row i is lane i of column j, undefined past the last column.
    """
    kind = columns[0].kind
    lanes, segment = lanes_of(kind), _segment_of(kind)
    half, count = lanes // 2, len(columns)
    assert count <= half
    transposed = []
    for first in range(0, count, segment):
        block = columns[first : first + segment]
        block += [e.poison(kind)] * (segment - len(block))
        transposed.append(_transpose_inside(e, block))
    rows: list[Value | None] = [None] * lanes
    for j in range(segment):
        for s in range(0, lanes // segment, 2):
            low, high = _lanes(s, segment), _lanes(s + 1, segment)
            start = transposed[0][j]
            if len(transposed) == 1:
                joined, picks = start, (low, high)
            else:
                order = [*low, *(lanes + p for p in low), *high, *(lanes + p for p in high)]
                joined = e.shuffle(start, transposed[1][j], order)
                picks = (list(range(half)), list(range(half, lanes)))
            for step, lanes_wanted in enumerate(picks):
                padded = [*lanes_wanted, *[-1] * (half - len(lanes_wanted))]
                rows[(s + step) * segment + j] = e.shuffle(joined, None, padded)
    return [row for row in rows if row is not None]


def _lanes(segment: int, size: int) -> list[int]:
    return list(range(segment * size, (segment + 1) * size))


def _transpose_inside(e: Function, vectors: list[Value]) -> list[Value]:
    """Transpose each segment of as many vectors as a segment has lanes."""
    segment = len(vectors)
    columns, grain = list(vectors), 1
    while grain < segment:
        mixed = list(columns)
        for i in range(segment):
            if not i & grain:
                a, b = columns[i], columns[i + grain]
                mixed[i] = _interleave(e, a, b, grain, segment, high=False)
                mixed[i + grain] = _interleave(e, a, b, grain, segment, high=True)
        columns, grain = mixed, 2 * grain
    order = _bit_reversed(segment)
    return [columns[order[k]] for k in range(segment)]


def any_lane(e: Function, mask: Value) -> Value:
    """Return whether a mask has any lane."""
    return lane_bits(e, mask).compare("ne", 0)


def lane_bits(e: Function, mask: Value) -> Value:
    """A mask as an integer of a bit for each lane."""
    lanes = lanes_of(mask.kind)
    return mask if lanes == 1 else e.convert("bitcast", mask, f"i{lanes}")


def power_below(count: int, most: int) -> int:
    """The largest power of two that is neither above `count` nor above the power of two `most`."""
    power = most
    while power > count:
        power //= 2
    return power


def transpose_rectangle(e: Function, rows: list[Value], count: int) -> list[Value]:
    """Transpose `rows` (r vectors of w lanes, both powers of two); only `count` columns are made.

    Rows of fewer lanes than there are rows, and fewer rows than lanes, are filled up with lanes
    that nobody reads.

    Returns:
        `count` vectors of r lanes: column `i` holds lane `i` of every row.
    """
    r, w, element = len(rows), lanes_of(rows[0].kind), element_of(rows[0].kind)
    if r == 1:
        return [e.extract(rows[0], i) for i in range(count)]
    size = max(r, w)
    if w == 1:
        wide = e.poison(vector(element, r))
        for i, row in enumerate(rows):
            wide = e.insert(wide, row, i)
        return [wide]
    if w < size:
        rows = [e.shuffle(row, None, [*range(w), *[-1] * (size - w)]) for row in rows]
    rows = rows + [e.poison(vector(element, size))] * (size - r)
    columns = transpose(e, rows)[:count]
    return columns if r == size else [e.shuffle(column, None, range(r)) for column in columns]
