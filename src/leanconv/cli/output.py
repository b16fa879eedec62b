"""Output of commands: streams, tables, JSON, progress, and files written whole or not at all.

Standard input, output and error may be closed, full, without a reader, or of few letters.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO
from zipfile import ZipFile

import numpy as np

from leanconv.cli.table import Column, cells_of, lay_out, shortened, wrapped

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
_PLAIN = {"─": "-", "…": "...", "→": "->"}
_ERRORS = "leanconv.plain"
PATIENCE_S = 1.0
_PHRASES = {  # of Python's arguments, as messages have them
    "algorithms names ": "--algorithm names ",
    "got algorithms together with memory_limit": "got --algorithm together with --memory-limit",
    "got algorithms together with max_error": "got --algorithm together with --max-error",
    "or float64 arrays": "or --dtype float64",
    "stream_weights=True": "--stream-weights",
    "which shapes states": "which --shape states",
    "got out=": "got --output ",
}
_VALUE = re.compile(r"expected it where others have a shape: \{(.+?): np\.array\(…\)\}")
_QUOTES = "'\""
_ARGUMENT = re.compile(
    r"\b(memory_limit|max_error|dtype)=('[^']*'|[\w.+-]*\w)"  # as Python takes them
)


def prepare_streams() -> None:
    """Open those that are closed, and let those that lack a letter write another one for it.

    Where a stream is closed, Python has None for it, and the next file that is opened takes its
    number: what is printed would land in that file.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
    codecs.register_error(_ERRORS, _plain)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors=_ERRORS)


def flushed(code: int) -> int:
    """Write out all that was printed, and return the exit code: 1 for 0 where that fails.

    A reader that went away, as in `leanconv explain … | head`, is no failure.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            _discard(stream)
        except OSError as error:
            _discard(stream)
            if stream is sys.stdout and not code:
                complain(f"leanconv: what was printed is not whole: {error.strerror or error}")
                code = 1
    return code


def complain(line: str) -> None:
    """Print a line on standard error, if that can be."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Drop what the stream still has, and all that follows: Python writes at exit."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    opened = os.open(os.devnull, os.O_WRONLY)
    os.dup2(opened, number)
    os.close(opened)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement of letters that the encoding lacks, as an error handler of codecs."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in missing), error.end


def printable(text: str) -> str:
    """Replace control characters: names and labels come from files that nobody vouches for."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def in_options(message: str) -> str:
    """A message with the names of arguments as the command line has them."""
    for said, option in _PHRASES.items():
        message = message.replace(said, option)
    message = _VALUE.sub(lambda m: f"expected --value {m[1].strip(_QUOTES)}=N", message)
    return _ARGUMENT.sub(lambda m: f"--{m[1].replace('_', '-')} {m[2].strip(_QUOTES)}", message)


def say_error(message: str) -> None:
    """Print what went wrong as one line on standard error."""
    complain(f"leanconv: {printable(' '.join(in_options(message).split()))}")


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output."""
    print(json_text(document))


def json_text(document: Mapping[str, Any]) -> str:
    """A document as JSON, in ASCII; NaN and infinities, which JSON lacks, are null."""
    return json.dumps(_finite(document), indent=2, ensure_ascii=True, allow_nan=False)


def _finite(value: Any) -> Any:
    """A JSON document with None for numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def print_table(
    columns: Sequence[str | Column],
    rows: Sequence[Sequence[str]],
    title: str = "",
    left: int = 1,
    wide: bool = False,
) -> None:
    """Print a table on standard output, as wide as the terminal allows, or as it needs to be.

    Args:
        columns: the headings, or `Column`s.
        rows: the cells, as many in a row as there are headings.
        title: the heading.
        left: where columns are headings only, how many of the first ones hold names; the others
            hold numbers.
        wide: whether lines may be longer than the terminal's.
    """
    described = [
        column if isinstance(column, Column) else Column(column, "name" if i < left else "number")
        for i, column in enumerate(columns)
    ]
    cells = [[one_line(cell) for cell in row] for row in rows]
    if title:
        print_text(title, wide)
        _print_line("")
    lines = lay_out(described, cells, None if wide else terminal_columns())
    for number, line in enumerate(lines):
        _print_line(line, heading=number == 0)


def print_text(text: str, wide: bool = False) -> None:
    """Print lines of text; on a terminal broken at blanks, so that none is longer than its lines.

    Args:
        text: any number of lines; what begins with blanks keeps them.
        wide: whether lines may be longer than the terminal's.
    """
    width = None if wide else terminal_columns()
    for line in printable(text).split("\n"):
        for piece in [line] if width is None else wrapped(line, width, "    "):
            _print_line(piece)


def terminal_columns() -> int | None:
    """The width of the terminal that standard output is; None where it is none."""
    return max(20, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def one_line(text: str) -> str:
    """Text that is printable, on one line."""
    return printable(text.replace("\n", " "))


def _print_line(line: str, heading: bool = False) -> None:
    """Print a line in letters that the output's encoding has."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        plain = line.translate({ord("─"): "-", ord("…"): "~"})  # as wide as before
        line = plain.encode(encoding, "replace").decode(encoding)
    if heading and sys.stdout.isatty():
        from rich.console import Console
        from rich.text import Text

        Console(highlight=False).print(Text(line, style="bold"), soft_wrap=True)
        return
    print(line)


class Progress:
    """Lines on standard error about work that takes more than a second.

    It never animates: a thread that redraws would disturb what is being measured. Where there is
    no terminal, each stage has one line.
    """

    def __init__(self, text: str) -> None:
        self._text = printable(text)
        self._shown = 0.0
        self._stages: set[str] = set()  # that were told
        self._begin = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._timer = threading.Timer(PATIENCE_S, self._show)
        self._timer.daemon = True
        with suppress(RuntimeError):  # the system starts no more threads: no lines, then
            self._timer.start()

    def say(self, text: str, counted: str = "") -> None:
        """Say what is being done; shown once a second at most, after the first second.

        Args:
            text: the stage.
            counted: how far it is, which a terminal shows.
        """
        self._text = printable(text + (counted if self._terminal else ""))
        now = time.monotonic()
        if now - self._begin > PATIENCE_S and now - self._shown > PATIENCE_S:
            self._show()

    def close(self) -> None:
        """Stop; clear the line of a terminal."""
        self._timer.cancel()
        if self._terminal and self._shown:
            _say("\r\x1b[K")

    def _show(self) -> None:
        self._shown = time.monotonic()
        if self._terminal:  # on one line, which is cleared later
            most = shutil.get_terminal_size().columns - 1
            line = f"{self._text} …"
            short = shortened([line], max(4, most)) if cells_of(line) > most else None
            line = short[line] if short else line
            _say(f"\r\x1b[K{line}")
        elif self._text not in self._stages:
            self._stages.add(self._text)
            _say(f"leanconv: {self._text} …\n")


def _say(text: str) -> None:
    """Write on standard error; nobody may be there to read it."""
    with suppress(OSError, ValueError):
        print(text, end="", file=sys.stderr, flush=True)


@contextmanager
def progress(text: str) -> Iterator[Progress]:
    """Show `text` on standard error if the block takes more than a second."""
    shown = Progress(text)
    try:
        yield shown
    finally:
        shown.close()


@contextmanager
def writing(file: str | Path) -> Iterator[Path]:
    """Give a path to write to, which becomes the file where the block ends well.

    What is there and is no regular file, such as `/dev/stdout`, is written to directly.

    Raises:
        OSError: the file cannot be written; it is left as it was.
    """
    path = Path(os.path.realpath(file))
    if path.exists() and not path.is_file():
        yield path
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield aside
        os.replace(aside, path)
    except OSError as error:
        if error.filename == str(aside):
            error.filename = str(file)
        raise
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def writing_arrays(file: str | Path) -> Iterator[Callable[[Mapping[str, np.ndarray]], None]]:
    """Give a function that adds arrays, by any names, to an .npz file; a name is kept once.

    Raises:
        OSError: the file cannot be written; it is left as it was.
    """
    with writing(file) as aside, ZipFile(aside, "w") as bundle:
        seen: set[str] = set()

        def keep(arrays: Mapping[str, np.ndarray]) -> None:
            for name, array in arrays.items():
                if name not in seen:
                    seen.add(name)
                    with bundle.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)

        yield keep
