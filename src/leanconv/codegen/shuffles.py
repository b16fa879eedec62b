"""Moves between lanes: transposition of a square of vectors in registers."""

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


def transpose(e: Function, rows: list[Value]) -> list[Value]:
    """Transpose L vectors of L lanes: result j holds lane j of each row, in order.

    First within segments of 16 bytes (interleaving, one instruction each on every vector
    instruction set), then whole segments between vectors: L·log2(L) shuffles.
    """
    lanes = lanes_of(rows[0].kind)
    assert len(rows) == lanes
    if lanes == 1:
        return rows
    segment = max(2, min(lanes, 16 // bytes_of(element_of(rows[0].kind))))
    columns = list(rows)
    grain = 1
    while grain < segment:
        mixed: list[Value | None] = [None] * lanes
        for i in range(lanes):
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
    order = _bit_reversed(segment)
    blocks = lanes // segment
    # columns[q*segment + order[k]] holds, in segment s, rows q*segment… of column s*segment + k.
    result: list[Value | None] = [None] * lanes
    for k in range(segment):
        quads = [columns[q * segment + order[k]] for q in range(blocks)]
        for s, column in enumerate(_transpose_segments(e, quads, segment)):
            result[s * segment + k] = column
    return [r for r in result if r is not None]


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
    turned = transpose(e, [e.convert("bitcast", row, wide) for row in rows])
    return [e.convert("bitcast", column, kind) for column in turned]
