"""The command `leanconv`: parse, call the sub-command, turn errors into one line and a code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from types import ModuleType

from leanconv import __version__
from leanconv.cli import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    EXIT_USER_ERROR,
)
from leanconv.cli.options import CommandParser, Parser, UsageError
from leanconv.cli.output import flushed, prepare_streams
from leanconv.errors import LeanConvError
from leanconv.files import reason
from leanconv.lazy_imports import module
from leanconv.settings import current_settings

_COMMANDS = {  # the module of each, in the order of the help
    "run": "run",
    "explain": "explain",
    "verify": "verify",
    "profile": "profile",
    "bench": "bench",
    "quantize": "quantize",
    "compile": "compile_library",
    "algorithms": "algorithms",
    "winograd": "winograd",
    "serve": "serve",
    "warm": "warm",
    "machine": "machine",
}
_EPILOG = """\
exit codes:
  0    done
  1    a model, image, problem or setting cannot be used; the message says why
  2    the command line itself is wrong
  3    done, but answers differ, or memory or a benchmark's goal was not kept
  70   a defect of leanconv; please report it
  130  interrupted
"""


def imported(words: Sequence[str]) -> dict[str, ModuleType]:
    """Import the sub-command that a command line begins with; all where it begins with none."""
    names = words[:1] if words and words[0] in _COMMANDS else _COMMANDS
    return {name: module(f"leanconv.cli.{_COMMANDS[name]}") for name in names}


def build_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of a command line: of all sub-commands, if it begins with none."""
    parser = Parser(
        prog="leanconv",
        description="Run, explain and measure convolutional networks on generated kernels.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"leanconv {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=CommandParser
    )
    for name, found in imported(words).items():
        command = commands.add_parser(name, help=found.HELP, description=found.__doc__)
        found.add_options(command)
        command.set_defaults(execute=found.execute)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (by default this process's) and return its exit code."""
    prepare_streams()
    try:
        code = _run(arguments)
    except SystemExit as stop:  # argparse's, after `--help` or a wrong command line
        code = stop.code if isinstance(stop.code, int) else EXIT_OK
    return flushed(code)


def _run(arguments: Sequence[str] | None) -> int:
    debug = False
    try:
        words = sys.argv[1:] if arguments is None else arguments
        options = build_parser(words).parse_args(words)
        debug = current_settings().debug
        if debug:
            logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
        code: int = options.execute(options)
        return code
    except UsageError as error:
        return _fail(str(error), EXIT_USAGE, debug)
    except LeanConvError as error:
        return _fail(str(error), EXIT_USER_ERROR, debug)
    except BrokenPipeError:  # the reader went away, as in `leanconv explain … | head`
        return EXIT_OK
    except OSError as error:
        return _fail(_os_message(error), EXIT_USER_ERROR, debug)
    except MemoryError as error:
        what = f"memory could not be had ({error}); give smaller shapes, or free memory"
        return _fail(what, EXIT_USER_ERROR, debug)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED, debug=False)
    except Exception as error:
        if debug:
            raise
        what = f"{type(error).__name__}: {error}"
        return _fail(
            f"defect of leanconv ({what}); set LEANCONV_DEBUG=1 for the traceback, and report it",
            EXIT_BUG,
            debug,
        )


def _os_message(error: OSError) -> str:
    if error.filename is None:
        return f"the output cannot be written: {error.strerror or error}"
    return f"{error.filename}: {reason(error)}"


def _fail(message: str, code: int, debug: bool) -> int:
    from leanconv.cli.output import say_error

    if debug:
        logging.getLogger("leanconv.cli").exception("the command failed")
    say_error(message)
    return code
