"""The command line's entry: Ctrl-C ends it at any moment, with code 130 and no traceback."""

from __future__ import annotations

import _thread
import os
import signal
import sys

from leanconv.cli import EXIT_INTERRUPTED

# Nothing else is imported here: until `main` is called, Ctrl-C ends in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def main() -> int:
    """Run this process's command line and return its exit code.

    The modules that take long to import are imported within, where Ctrl-C just ends the process:
    nothing has begun yet, and C code that is imported turns a KeyboardInterrupt into other errors.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as by `nohup`
        from leanconv.cli.main import main as command

        return command()
    signal.signal(signal.SIGINT, _leave)
    from leanconv.cli.main import imported
    from leanconv.cli.main import main as command

    imported(sys.argv[1:])
    sys.unraisablehook = _again
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return command()
    except KeyboardInterrupt:  # before or after what `command` catches
        _say()
        return EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, _leave)  # while the interpreter ends


def _leave(_signum: int, _frame: FrameType | None) -> None:
    _say()
    os._exit(EXIT_INTERRUPTED)


def _say() -> None:
    try:
        os.write(2, b"leanconv: interrupted\n")
    except OSError:
        return  # nobody is there to read it


def _again(lost: sys.UnraisableHookArgs) -> None:
    """Interrupt once more where a `__del__`, one of llvmlite's for example, has lost it."""
    if lost.exc_type is None or not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    try:
        _thread.start_new_thread(_interrupt_soon, ())
    except RuntimeError:  # no thread can be had
        _thread.interrupt_main()


def _interrupt_soon() -> None:
    """Raise KeyboardInterrupt in the main thread when it has come out of the `__del__`."""
    import threading
    import time

    time.sleep(0.001)
    main_thread = threading.main_thread().ident
    if main_thread is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main_thread, signal.SIGINT)  # which ends what the thread waits for
    else:
        _thread.interrupt_main()
