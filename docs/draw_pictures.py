"""Draw the pictures of `algorithms.md`: what lies where in memory.

    python docs/draw_pictures.py            writes docs/pictures/*.svg

The files are the same on every machine; `tests/test_pictures.py` draws them again and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "pictures"
GREY, BLUE, ORANGE, GREEN = "#e4e7eb", "#bfdbfe", "#fed7aa", "#bbf7d0"
RED, WHITE, INK = "#f87171", "#ffffff", "#1f2933"
THREE = (BLUE, ORANGE, GREEN)
_STYLE = (
    "text{font:12px sans-serif;fill:#1f2933}.s{font-size:10px}.b{font-weight:bold}"
    "rect{stroke:#52606d}line{stroke:#1f2933}"
)

# What a cell looks like, by row and column: its colour and its label.
Look = Callable[[int, int], tuple[str, str]]


class Picture:
    """An SVG picture; everything is placed by its left upper corner, in pixels."""

    def __init__(self, width: int, height: int) -> None:
        self._size = width, height
        self._parts: list[str] = []

    def svg(self) -> str:
        """The file's text."""
        width, height = self._size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">'
        )
        paper = f'<rect width="{width}" height="{height}" fill="{WHITE}" style="stroke:none"/>'
        return "\n".join([head, f"<style>{_STYLE}</style>", paper, *self._parts, "</svg>", ""])

    def text(self, x: int, y: int, words: str, anchor: str = "start", kind: str = "") -> None:
        """Write, with the base line at y; kind is `"s"` for small, `"b"` for bold."""
        place = f'x="{x}" y="{y}"'
        place += f' text-anchor="{anchor}"' if anchor != "start" else ""
        place += f' class="{kind}"' if kind else ""
        self._parts.append(f"<text {place}>{escape(words)}</text>")

    def box(self, x: int, y: int, w: int, h: int, fill: str, label: str = "") -> None:
        """Draw a filled rectangle with a label in its middle."""
        self._parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}"/>')
        if label:
            self.text(x + w // 2, y + h // 2 + 4, label, "middle", "s")

    def frame(self, x: int, y: int, w: int, h: int, dashed: bool = False) -> None:
        """Draw a thick outline."""
        dashes = ";stroke-dasharray:5 3" if dashed else ""
        style = f"fill:none;stroke:{INK};stroke-width:3{dashes}"
        self._parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" style="{style}"/>')

    def cells(self, x: int, y: int, columns: int, rows: int, size: Sequence[int], at: Look) -> None:
        """Draw a grid of cells."""
        w, h = size
        for row in range(rows):
            for column in range(columns):
                self.box(x + column * w, y + row * h, w, h, *at(row, column))

    def line(self, x1: int, y1: int, x2: int, y2: int) -> None:
        """Draw a line."""
        self._parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')

    def arrow(self, x1: int, x2: int, y: int) -> None:
        """Draw an arrow to the right."""
        self.line(x1, y, x2, y)
        self.line(x2 - 6, y - 4, x2, y)
        self.line(x2 - 6, y + 4, x2, y)

    def span(self, x1: int, x2: int, y: int, label: str = "") -> None:
        """Draw a measuring line with ticks at its ends, the label under it."""
        self.line(x1 + 1, y, x2 - 1, y)
        self.line(x1 + 1, y - 4, x1 + 1, y + 4)
        self.line(x2 - 1, y - 4, x2 - 1, y + 4)
        if label:
            self.text((x1 + x2) // 2, y + 14, label, "middle", "s")


def _strip(fill: str, name: Callable[[int], str]) -> Look:
    """Cells of one colour, named by their column."""
    return lambda _, column: (fill, name(column))


def _every(first: int, letter: str) -> Callable[[int], str]:
    """The names of every second element."""
    return lambda index: f"{letter}{2 * index + first}"


# -- direct, planar, depthwise -------------------------------------------------------------------
def direct() -> Picture:
    """The register tile, and the streams that feed it."""
    p = Picture(720, 420)
    p.text(20, 24, "One step of the reduction, (kh, kw, c): 6 columns by 2 vectors of 8", kind="b")
    for j in range(2):
        x = 240 + j * 200
        p.cells(x, 62, 8, 1, (24, 24), lambda _, lane: (ORANGE, str(lane)))
        p.text(x + 96, 54, f"w: 8 output channels, vector {j}", "middle")
    for i in range(6):
        y = 100 + i * 28
        p.box(110, y, 90, 24, BLUE, f"x[ow + {i}]")
        p.arrow(202, 236, y + 12)
        for j in range(2):
            p.box(240 + j * 200, y, 192, 24, GREEN, f"acc[{i}][{j}] += x[ow + {i}] · w[{j}]")
    p.text(20, 116, "one element,", kind="s")
    p.text(20, 130, "to all lanes", kind="s")
    p.text(640, 116, "registers", kind="s")
    p.text(20, 300, "x, NCHW: a row of plane c, read in place", kind="b")
    p.cells(20, 308, 12, 1, (44, 24), lambda _, c: (BLUE if 2 <= c < 8 else GREY, str(c)))
    p.span(108, 372, 342, "the tile's elements at tap kw = 2 (stride 1): ow + kw")
    p.text(20, 384, "w, packed: one stream in the order in which it is read", kind="b")
    words = ("kh, kw, c = 0", "1", "2", "…", "next panel …")
    for place, word in enumerate(words):
        p.box(20 + place * 130, 392, 130, 22, WHITE if place == 4 else ORANGE, word)
    return p


def planar() -> Picture:
    """Vectors along a row of output columns."""
    p = Picture(720, 330)
    p.text(20, 24, "Vectors of 8 output columns; kernel 3 wide, stride 1, one tap row kh", kind="b")
    p.text(20, 52, "x, NCHW: a row of plane c")
    p.cells(20, 60, 14, 1, (44, 24), lambda _, c: (BLUE if c < 10 else GREY, str(c)))
    for tap in range(3):
        p.span(20 + tap * 44, 20 + (tap + 8) * 44, 102 + tap * 32)
        p.text(396 + tap * 44, 106 + tap * 32, f"vector read at kw = {tap}", kind="s")
    p.text(20, 204, "registers: 4 output channels k by one vector; w is one number, to all lanes")
    for k in range(4):
        p.box(20, 212 + k * 28, 130, 24, ORANGE, f"w[k + {k}, c, kh, kw]")
        p.arrow(152, 176, 224 + k * 28)
        p.cells(180, 212 + k * 28, 8, 1, (44, 24), lambda _, c: (GREEN, str(c)))
        p.text(542, 228 + k * 28, f"y[k + {k}, oh, 0…7]", kind="s")
    return p


def depthwise() -> Picture:
    """Vectors along channels; each input vector meets several outputs."""
    p = Picture(720, 300)
    p.text(20, 24, "Vectors of 8 channels; kernel 3 wide, no padding, one tap row kh", kind="b")
    p.text(20, 52, "x, channels in blocks of 8 (or NHWC): one vector for each column")
    for column in range(6):
        x = 20 + column * 112
        fill = RED if column == 2 else BLUE
        p.cells(x, 60, 8, 1, (13, 24), _strip(fill, lambda _: ""))
        p.text(x + 52, 98, f"column {column}", "middle", "s")
    for column in range(4):
        x = 132 + column * 112
        p.cells(x, 190, 8, 1, (13, 24), lambda *_: (GREEN, ""))
        p.text(x + 52, 228, f"y, column {column}", "middle", "s")
        if column < 3:
            p.line(296, 104, x + 52, 188)
            p.text((296 + x + 52) // 2 + 6 * (1 + column), 150, f"kw = {2 - column}", kind="s")
    p.text(20, 260, "Column 2 is read once and multiplied by the three weight vectors of the tap")
    p.text(
        20, 276, "row, which stay in registers: w[kh, kw][lane]. No broadcast, no sum over lanes."
    )
    return p


# -- lowerings: 7 x 7 input, 3 x 3 kernel, stride 1, one channel ---------------------------------
def _look(row: int, column: int, shade: int) -> tuple[str, str]:
    """An element of the input; the one in the middle of the first windows is red."""
    return RED if (row, column) == (2, 2) else THREE[shade % 3], f"{row}{column}"


def _input(p: Picture, shade: Callable[[int, int], int]) -> None:
    p.text(20, 44, "x: 7 x 7 elements, named by row and column")
    p.cells(20, 52, 7, 7, (28, 24), lambda r, c: _look(r, c, shade(r, c)))
    p.frame(20, 52, 84, 72)
    p.frame(48, 52, 84, 72, dashed=True)
    p.text(20, 238, "windows (0, 0) and, dashed, (0, 1)", kind="s")


def im2col() -> Picture:
    """Every window a row."""
    p = Picture(720, 470)
    p.text(20, 22, "im2col: 25 windows x 9 taps = 225 elements", kind="b")
    _input(p, lambda r, _: r)
    p.text(20, 262, "Element 22 stands in nine rows.")
    p.text(20, 282, "Columns: (kh, kw, c), rows: (oh, ow).")
    p.text(330, 44, "M: one row for each window")

    def look(row: int, column: int) -> tuple[str, str]:
        (oh, ow), (kh, kw) = divmod(row, 5), divmod(column, 3)
        return _look(oh + kh, ow + kw, oh + kh)

    p.cells(330, 52, 9, 25, (38, 16), look)
    for row in (0, 1, 2, 12, 24):
        p.text(322, 64 + row * 16, f"{row // 5}, {row % 5}", "end", "s")
    p.frame(330, 52, 342, 16)
    p.frame(330, 68, 342, 16, dashed=True)
    return p


def mec() -> Picture:
    """Lowered along the width; partitions overlap."""
    p = Picture(720, 500)
    p.text(20, 22, "MEC: 5 x 21 = 105 elements, lowered along the width only", kind="b")
    _input(p, lambda r, _: r)
    p.text(240, 64, "L[ow, h, kw] = x[h, ow·sw + kw]: row ow of L holds all strips that windows")
    p.text(240, 80, "at column ow are made of, from top to bottom of the image.")
    p.text(240, 104, "Element 22 stands in three rows: once for each kw.")
    p.text(240, 128, "Window (0, 0) is the first nine elements of row 0, window (0, 1) those of")
    p.text(240, 144, "row 1: one output row is a product with a partition of 5 x 9, and the next")
    p.text(240, 160, "output row has the partition sh·kw·c = 3 columns further right.")
    p.text(40, 274, "L")

    def look(row: int, column: int) -> tuple[str, str]:
        h, kw = divmod(column, 3)
        return _look(h, row + kw, h)

    p.cells(40, 282, 21, 5, (31, 20), look)
    for row in range(5):
        p.text(34, 296 + row * 20, str(row), "end", "s")
    p.frame(40, 282, 279, 20)
    p.frame(40, 302, 279, 20, dashed=True)
    for oh, name in enumerate("PQRST"):
        p.span(40 + 93 * oh, 40 + 93 * oh + 279, 398 + oh * 20)
        p.text(46 + 93 * oh, 394 + oh * 20, f"{name}: oh = {oh}, at element {3 * oh}", kind="s")
    return p


def im2win() -> Picture:
    """Transformed along the height; windows overlap."""
    p = Picture(720, 500)
    p.text(20, 22, "im2win: 5 x 21 = 105 elements, unfolded along the height only", kind="b")
    _input(p, lambda _, c: c)
    p.text(240, 64, "I^[oh, iw, u] = x[oh·sh + u, iw]: row oh of I^ holds the kh rows that windows")
    p.text(240, 80, "of output row oh are made of, column by column.")
    p.text(240, 104, "Element 22 stands in three rows: once for each u.")
    p.text(240, 128, "Window (0, 0) is the first nine elements of row 0, window (0, 1) starts")
    p.text(240, 144, "sw·kh = 3 further right: a window is one run, and neighbours overlap.")
    p.text(240, 160, "The filter is turned to match: w[v, u], u the faster.")
    p.text(40, 274, "I^")

    def look(row: int, column: int) -> tuple[str, str]:
        iw, u = divmod(column, 3)
        return _look(row + u, iw, iw)

    p.cells(40, 282, 21, 5, (31, 20), look)
    for row in range(5):
        p.text(34, 296 + row * 20, str(row), "end", "s")
    p.frame(40, 282, 279, 20)
    p.frame(133, 282, 279, 20, dashed=True)
    for ow in range(5):
        p.span(40 + 93 * ow, 40 + 93 * ow + 279, 398 + ow * 20)
        p.text(46 + 93 * ow, 394 + ow * 20, f"ow = {ow}, at element {3 * ow}", kind="s")
    return p


# -- Winograd and FFT ----------------------------------------------------------------------------
def _sheets(p: Picture, x: int, y: int, size: tuple[int, int], fill: str, label: str) -> None:
    """Matrices lying on each other, one for each point."""
    for back in (2, 1, 0):
        p.box(x + 8 * back, y - 8 * back, *size, fill, label if back == 0 else "")


def winograd() -> Picture:
    """A block of tiles through the three stages, and where it lies meanwhile."""
    p = Picture(760, 440)
    p.text(20, 22, "Fused Winograd, F(4x4, 3x3): one block of tiles by one chunk", kind="b")
    p.text(20, 48, "x: tiles of 6 x 6, 4 apart")
    p.cells(20, 56, 10, 6, (15, 15), lambda _, c: (GREEN if 4 <= c < 6 else GREY, ""))
    p.frame(20, 56, 90, 90)
    p.frame(80, 56, 90, 90, dashed=True)
    p.text(20, 164, "neighbours share r - 1 = 2", kind="s")
    p.arrow(180, 226, 100)
    p.text(203, 92, "Bᵀ d B", "middle", "s")
    _sheets(p, 232, 76, (90, 60), BLUE, "V[xi]")
    p.text(285, 152, "tiles x channels", "middle", "s")
    p.text(352, 110, "·", kind="b")
    _sheets(p, 368, 64, (70, 84), ORANGE, "U[xi]")
    p.text(410, 164, "channels x outputs", "middle", "s")
    p.text(462, 110, "=", kind="b")
    _sheets(p, 480, 76, (70, 60), GREEN, "M[xi]")
    p.text(520, 152, "tiles x outputs", "middle", "s")
    p.arrow(574, 624, 100)
    p.text(599, 92, "Aᵀ M A", "middle", "s")
    p.cells(632, 71, 8, 4, (15, 15), lambda _, c: (GREY if c < 4 else WHITE, ""))
    p.frame(632, 71, 60, 60)
    p.text(632, 152, "y: 4 x 4 a tile", kind="s")
    p.text(285, 186, "36 matrices each: xi = 0 … 35, a product for every one", kind="s")
    y = 222
    p.text(20, y, "In a thread's scratch, sized for its second cache:", kind="b")
    _band(p, y + 10, BLUE, ("V: xi = 0", "xi = 1", "…", "xi = 35"))
    p.text(20, y + 50, "each xi: [channel block][tile][lane], and a cache line more", kind="s")
    _band(p, y + 60, GREEN, ("M: xi = 0", "xi = 1", "…", "xi = 35"))
    p.text(20, y + 100, "each xi: [tile][vectors · lanes], of one panel of outputs", kind="s")
    p.text(20, y + 132, "Packed once, read by all threads as one stream:", kind="b")
    _band(p, y + 142, ORANGE, ("U: panel 0, xi = 0", "xi = 1", "…", "panel 1 …"))
    p.text(20, y + 182, "each xi: [phase and channel][vectors · lanes]", kind="s")
    return p


def _band(p: Picture, y: int, fill: str, words: Sequence[str]) -> None:
    for place, word in enumerate(words):
        p.box(20 + place * 150, y, 150, 24, fill, word)


def taking_apart() -> Picture:
    """Strides, dilations and long kernels become dense small convolutions."""
    p = Picture(720, 470)
    p.text(20, 24, "Polyphase: 7 taps at stride 2 are 4 and 3 taps at stride 1", kind="b")
    p.cells(20, 34, 14, 1, (36, 22), lambda _, c: (THREE[c % 2], f"x{c}"))
    p.cells(20, 62, 7, 1, (36, 22), lambda _, c: (THREE[c % 2], f"w{c}"))
    for phase in range(2):
        taps = range(phase, 7, 2)
        y = 96 + 30 * phase
        p.text(20, y + 15, f"phase {phase}")
        p.cells(80, y, 7, 1, (36, 22), _strip(THREE[phase], _every(phase, "x")))
        p.cells(370, y, len(taps), 1, (36, 22), _strip(THREE[phase], _every(phase, "w")))
    p.text(540, 120, "phases add up like channels", kind="s")
    y = 192
    p.text(20, y, "Decimation: 3 taps at dilation 2 never see both colours", kind="b")
    p.cells(20, y + 10, 14, 1, (36, 22), lambda _, c: (THREE[c % 2], f"x{c}"))
    p.cells(20, y + 62, 10, 1, (36, 22), lambda _, c: (THREE[c % 2], f"y{c}"))
    for source in (3, 5, 7):
        p.line(20 + 36 * source + 18, y + 32, 20 + 36 * 3 + 18, y + 62)
    p.text(400, y + 78, "each residue: an image of its own, dense, the same weights", kind="s")
    y = 322
    p.text(20, y, "Splitting: 11 taps at stride 1 are 6 and 5; the second part adds to y", kind="b")
    p.cells(20, y + 10, 16, 1, (36, 22), lambda _, c: (BLUE if c < 6 else GREY, f"x{c}"))
    p.cells(20, y + 36, 11, 1, (36, 22), lambda _, c: (BLUE if c < 6 else ORANGE, f"w{c}"))
    p.text(430, y + 51, "y0  = x0 … x5 · w0 … w5", kind="s")
    p.cells(20, y + 72, 16, 1, (36, 22), lambda _, c: (ORANGE if 6 <= c < 11 else GREY, f"x{c}"))
    p.text(
        20, y + 112, "y0 += x6 … x10 · w6 … w10: the same convolution, 6 further right", kind="s"
    )
    return p


def fft() -> Picture:
    """Tiles of overlap-save along one axis, and the slots of the bins."""
    p = Picture(760, 430)
    p.text(20, 22, "Overlap-save along one axis: T = 16, 5 taps, 12 outputs a tile", kind="b")
    p.text(20, 46, "x")
    p.cells(40, 34, 28, 1, (25, 22), lambda _, c: (GREEN if 12 <= c < 16 else GREY, str(c)))
    p.span(40, 440, 68, "tile 0: 16 inputs")
    p.span(340, 740, 92, "tile 1 shares taps - 1 = 4 of them")
    p.text(20, 134, "y")
    p.cells(40, 120, 24, 1, (25, 22), lambda _, c: (BLUE if c < 12 else ORANGE, str(c)))
    p.span(40, 340, 152, "from tile 0: the first 12 of 16 results;")
    p.span(340, 640, 152, "from tile 1; the rest have wrapped around")
    y = 206
    p.text(20, y, "A thread's scratch while bin 3 is multiplied", kind="b")
    names = ("Y 0", "Y 1", "Y 2", "Y 3: written", "X 3: read", "X 4", "X 5", "…", "X 129")
    numbers = (*map(str, range(7)), "…", "130")
    for place, (name, number) in enumerate(zip(names, numbers, strict=True)):
        fill = GREEN if place < 4 else BLUE
        p.box(20 + place * 80, y + 10, 80, 30, fill, name)
        p.text(60 + place * 80, y + 54, f"slot {number}", "middle", "s")
    p.text(20, y + 84, "bins + 1 slots: bin b is read from slot b + 1 and written to slot b")
    p.text(20, y + 112, "X, a slot: [tile][re, im][phase][channel]", kind="s")
    p.text(20, y + 128, "Y, a slot: [tile][re, im][output channel]", kind="s")
    p.text(20, y + 144, "an odd number of cache lines, so that bins do not share sets", kind="s")
    y += 170
    for x, w, word in ((20, 240, "half-transformed tile"), (260, 120, "row")):
        p.box(x, y, w, 24, GREY, word)
    p.text(390, y + 16, "behind the slots: T x (T + 1) vectors, and T + 2 · lanes", kind="s")
    return p


PICTURES: tuple[Callable[[], Picture], ...] = (
    direct,
    planar,
    depthwise,
    im2col,
    mec,
    im2win,
    winograd,
    taking_apart,
    fft,
)


def drawn() -> dict[str, str]:
    """The text of every file, by its name."""
    return {f"{draw.__name__}.svg": draw().svg() for draw in PICTURES}


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawn().items():
        (FOLDER / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
