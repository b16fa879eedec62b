"""Tables that keep every row's key columns at any width.

A table that goes to a terminal must fit it. Nothing is left out, and numbers are never cut. What
gives way, in this order: columns that are marked as optional go below their row, as `heading value`
pairs; names are shortened in the middle as long as different ones stay different, else broken at
their slashes; prose takes several lines; and where even that does not fit, each row becomes a
paragraph of such pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from leanconv.records import dataclass

GAP = 2  # blanks between two columns
NONE = "-"  # what a cell holds where there is nothing to say
_COMFORTABLE = 16  # columns of a name, before something optional is left out
_LEAST = {"name": 8, "prose": 20}
_ELLIPSIS = "…"

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: of the column.
        kind: `"name"`, which may be shortened in the middle; `"prose"`, which may be wrapped at
            blanks; `"number"`, which is neither, and aligned to the right.
        optional: 0 for a column that stays in its row; the larger, the earlier it goes below.
    """

    heading: str
    kind: str = "number"
    optional: int = 0


def lay_out(columns: Sequence[Column], rows: Rows, width: int | None) -> list[str]:
    """The lines of a table, heading and rule first.

    Args:
        columns: their headings and kinds.
        rows: the cells, as many in a row as there are columns; on one line each.
        width: columns of the terminal; None for a file or a pipe, where every line is as long as
            it needs to be.
    """
    natural = _natural(columns, rows)
    shown = list(range(len(columns)))
    if width is not None:
        kept = _kept(columns, natural, width)
        if kept is None:
            return list(_paragraphs(columns, rows, width))
        shown = kept
    widths = _widths(columns, natural, shown, width)
    cells = [
        _column_cells(columns[i], [row[i] for row in rows], size)
        for i, size in zip(shown, widths, strict=True)
    ]
    if None in cells:
        return list(_paragraphs(columns, rows, width or max(natural)))
    headings = [columns[i].heading for i in shown]
    lines = [_line(columns, shown, widths, headings), "─" * (sum(widths) + GAP * (len(shown) - 1))]
    below = [i for i in range(len(columns)) if i not in shown]
    for whole, row in zip(rows, zip(*filter(None, cells), strict=True), strict=True):
        for number in range(max(map(len, row))):
            pieces = [cell[number] if number < len(cell) else "" for cell in row]
            lines.append(_line(columns, shown, widths, pieces))
        if width is not None:
            lines += _pairs([(columns[i].heading, whole[i]) for i in below], width)
    return lines


def shortened(names: Sequence[str], width: int) -> dict[str, str] | None:
    """Shorten names to a width by leaving out their middles.

    Args:
        names: any number of them, the same one as often as one likes.
        width: cells that a name may take, at least 4.

    Returns:
        The short form of each name, different for different names; None where there is no such.
    """
    distinct = list(dict.fromkeys(names))
    long = [name for name in distinct if cells_of(name) > width]
    room = width - 1
    parts, short = _varying_parts(long), {name: name for name in distinct}
    for name in long:
        at_a_part = _cut_at_a_part(name, room)
        short[name] = parts[name] if 0 < cells_of(parts[name]) <= width else at_a_part
    if len(set(short.values())) == len(distinct):
        return short
    for head in sorted(range(room), key=lambda head: abs(head - room * 2 // 5)):
        short |= {name: _cut(name, head, room - head) for name in long}
        if len(set(short.values())) == len(distinct):
            return short
    return _told_apart(distinct, long, width)


def _varying_parts(names: list[str]) -> dict[str, str]:
    """Shorten paths to the parts in which those of equal length differ."""
    likes: dict[int, list[list[str]]] = {}
    for name in names:
        parts = name.split("/")
        likes.setdefault(len(parts), []).append(parts)
    short = {}
    for paths in likes.values():
        differ = [len(set(values)) > 1 for values in zip(*paths, strict=True)]
        for path in paths:
            kept = [part if own else "" for part, own in zip(path, differ, strict=True)]
            text = re.sub(r"/{2,}", _ELLIPSIS, "/".join(kept))
            short["/".join(path)] = text.strip("/" + _ELLIPSIS)
    return short


def _cut(name: str, head: int, tail: int) -> str:
    """The first and the last cells of a name."""
    return _left(name, head) + _ELLIPSIS + _left(name[::-1], tail)[::-1]


def _cut_at_a_part(name: str, room: int) -> str:
    """Keep as many whole parts at the end as leave room for a beginning."""
    most = room - max(3, room // 4)
    begins = (len(name) - match.start() for match in re.finditer(r"[ /._:-]+", name))
    tail = next((size for size in begins if cells_of(name[-size:]) <= most), room * 3 // 5)
    return _cut(name, room - cells_of(name[-tail:]), tail)


def _left(name: str, width: int) -> str:
    """The beginning of a name that takes at most so many cells."""
    taken, size = "", 0
    for character in name:
        size += cells_of(character)
        if size > width:
            break
        taken += character
    return taken


def _told_apart(distinct: list[str], long: list[str], width: int) -> dict[str, str] | None:
    """Leave out two parts of a name, and keep between them the part that differs from others."""
    tail = max(1, (width - 2) // 4)
    head = max(1, (width - 2) // 4)
    groups: dict[str, list[str]] = {}
    for name in long:
        groups.setdefault(_cut(name, head, tail), []).append(name)
    short = {name: name for name in distinct}
    for members in groups.values():
        begin = next(
            (i for i, letters in enumerate(zip(*members, strict=False)) if len(set(letters)) > 1),
            min(map(len, members)),
        )
        room = width - 2 - head - tail
        first = max(head, begin - room // 2) if len(members) > 1 else head
        for name in members:
            middle = _left(name[first:], room)
            short[name] = _left(name, head) + _ELLIPSIS + middle + _ELLIPSIS
            short[name] += _left(name[::-1], tail)[::-1]
    unique = len(set(short.values())) == len(distinct)
    fits = all(cells_of(text) <= width for text in short.values())
    return short if unique and fits else None


def cells_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: some letters take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def wrapped(text: str, width: int, later: str = "") -> list[str]:
    """Break a text at blanks into lines of at most a width; longer words at slashes, or anywhere.

    Args:
        text: on one line.
        width: cells of a line.
        later: the beginning of the second line and those after it.
    """
    body = text.lstrip(" ")
    indent = text[: len(text) - len(body)]
    lines, line, later = [], indent, indent + later
    for word in body.split(" "):
        longer = f"{line} {word}" if line.strip() else line + word
        if cells_of(longer) <= width:
            line = longer
            continue
        if line.strip():
            lines.append(line)
            line = later + word
        else:
            line = longer
        while cells_of(line) > width:
            part = _left(line, width)
            slash = part.rfind("/") + 1
            part = part[:slash] if part[:slash].strip(" /") else part
            lines.append(part)
            line = later + line[len(part) :]
    return [*lines, line] if line.strip() or not lines else lines


def _natural(columns: Sequence[Column], rows: Rows) -> list[int]:
    """The width that each column would like to have."""
    return [
        max([cells_of(column.heading), *(cells_of(row[i]) for row in rows)])
        for i, column in enumerate(columns)
    ]


def _least(column: Column, natural: int, comfortable: bool) -> int:
    if column.kind == "number":
        return natural
    least = _LEAST[column.kind]
    if comfortable and column.kind == "name":
        least = _COMFORTABLE
    return min(natural, max(least, cells_of(column.heading)))


def _kept(columns: Sequence[Column], natural: list[int], width: int) -> list[int] | None:
    """The columns that are shown; None where even the required ones do not fit."""
    shown = list(range(len(columns)))

    def needed(comfortable: bool) -> int:
        sizes = (_least(columns[i], natural[i], comfortable) for i in shown)
        return sum(sizes) + GAP * (len(shown) - 1)

    optional = sorted((i for i in shown if columns[i].optional), key=lambda i: columns[i].optional)
    while optional and needed(comfortable=True) > width:
        shown.remove(optional.pop())
    return shown if needed(comfortable=False) <= width else None


def _widths(
    columns: Sequence[Column], natural: list[int], shown: list[int], width: int | None
) -> list[int]:
    """Give what room there is to the columns that want more, names before prose."""
    if width is None:
        return [natural[i] for i in shown]
    sizes = {i: _least(columns[i], natural[i], comfortable=False) for i in shown}
    room = width - sum(sizes.values()) - GAP * (len(shown) - 1)
    for kind in ("name", "prose"):
        wanting = [i for i in shown if columns[i].kind == kind]
        while room and any(sizes[i] < natural[i] for i in wanting):
            least = min((i for i in wanting if sizes[i] < natural[i]), key=lambda i: sizes[i])
            sizes[least] += 1
            room -= 1
    return [sizes[i] for i in shown]


def _column_cells(column: Column, cells: list[str], width: int) -> list[list[str]] | None:
    """The lines of each cell of a column; None where names would have to be broken anywhere."""
    if column.kind == "number":
        return [[cell] for cell in cells]
    if column.kind == "prose":
        return [wrapped(cell, width) for cell in cells]
    short = shortened(cells, width)
    if short is not None:
        return [[short[cell]] for cell in cells]
    if any(cells_of(part) > width for cell in cells for part in re.findall("[^ /]*/?", cell)):
        return None
    return [wrapped(cell, width) for cell in cells]


def _line(
    columns: Sequence[Column], shown: list[int], widths: list[int], cells: Sequence[str]
) -> str:
    pieces = []
    for i, size, cell in zip(shown, widths, cells, strict=True):
        blanks = " " * (size - cells_of(cell))
        pieces.append(blanks + cell if columns[i].kind == "number" else cell + blanks)
    return (" " * GAP).join(pieces).rstrip()


def _paragraphs(columns: Sequence[Column], rows: Rows, width: int) -> Iterator[str]:
    """Each row by itself: its first cell, then all others with their headings."""
    for row in rows:
        yield from wrapped(row[0], width) if row[0] else ()
        named = zip(columns[1:], row[1:], strict=True)
        yield from _pairs([(column.heading, cell) for column, cell in named], width)


def _pairs(cells: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """The cells that are not empty with their headings, indented, on as few lines as fit."""
    pairs = [f"{heading} {cell}".strip() for heading, cell in cells if cell not in ("", NONE)]
    line = "   "
    for pair in pairs:
        longer = f"{line} {pair}" if line == "   " else f"{line},  {pair}"
        if cells_of(longer) <= width - 1 or not line.strip():
            line = longer
        else:
            yield from wrapped(line + ",", width, "      ")
            line = f"    {pair}"
    if pairs:
        yield from wrapped(line, width, "      ")
