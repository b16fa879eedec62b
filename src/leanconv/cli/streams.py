"""Standard input, output and error: closed, full, without a reader, or of few letters."""

from __future__ import annotations

import codecs
import os
import sys
from typing import TextIO

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
_PLAIN = {"─": "-", "…": "...", "→": "->"}
_ERRORS = "leanconv.plain"


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
    """Write out what was printed, and return the exit code: 1 for 0 where that fails.

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
    """Let what the stream still holds, and all that follows, go nowhere: Python writes at exit."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return
    opened = os.open(os.devnull, os.O_WRONLY)
    os.dup2(opened, number)
    os.close(opened)


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What is written for letters that the encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(_PLAIN.get(letter, "?") for letter in missing), error.end
