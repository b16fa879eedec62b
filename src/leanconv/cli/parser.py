"""The parser of a sub-command: options may stand before, between and after what has no name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """Take `verify MODEL --threads 2 SAMPLE`, which argparse refuses by itself.

    argparse gives a list its arguments where it first meets some: after `MODEL` an empty list of
    samples is taken, and what follows the option belongs to nobody.
    """

    _reading = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse options first, and then what is left of the arguments."""
        if self._reading:  # some versions of argparse come back here for each of the two passes
            return super().parse_known_args(args, namespace)
        self._reading = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._reading = False
