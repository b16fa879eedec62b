"""What the sub-commands share to speak: tables, JSON, progress."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 1.0
_WIDTH = 220  # columns of a table that does not go to a terminal


def printable(text: str) -> str:
    """Replace control characters: names and labels come from files that nobody vouches for."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(document, indent=2, ensure_ascii=True))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", left: int = 1
) -> None:
    """Print a table on standard output.

    Args:
        columns: the headings.
        rows: the cells, as many in a row as there are headings.
        title: stands above.
        left: how many of the first columns are aligned to the left; the others hold numbers.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else _WIDTH, highlight=False)
    if title:
        console.print(Text(printable(title), style="bold"), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(
            Text(column),
            justify="left" if index < left else "right",
            no_wrap=index >= left or not terminal,
            overflow="fold" if terminal else "ignore",
        )
    for row in rows:
        table.add_row(*[Text(printable(cell)) for cell in row])
    console.print(table)


class Progress:
    """Lines on standard error about work that takes more than a second.

    It never animates: a thread that redraws would disturb what is being measured.
    """

    def __init__(self, text: str) -> None:
        self._text = printable(text)
        self._shown = 0.0
        self._begin = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._timer = threading.Timer(PATIENCE_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def say(self, text: str) -> None:
        """Tell what is going on now; shown once a second at most, after the first second."""
        self._text = printable(text)
        now = time.monotonic()
        if now - self._begin > PATIENCE_S and now - self._shown > PATIENCE_S:
            self._show()

    def close(self) -> None:
        """Stop; clear the line of a terminal."""
        self._timer.cancel()
        if self._terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        self._shown = time.monotonic()
        if self._terminal:
            print(f"\r\x1b[K{self._text} …", end="", file=sys.stderr, flush=True)
        else:
            print(f"leanconv: {self._text} …", file=sys.stderr, flush=True)


@contextmanager
def progress(text: str) -> Iterator[Progress]:
    """Show `text` on standard error if the block takes more than a second."""
    shown = Progress(text)
    try:
        yield shown
    finally:
        shown.close()
