"""Parsers of the command line: options anywhere, and words that are nearly right are named."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Says which command or choice a wrong one may have meant."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2, the usage and the message."""
        super().error(with_a_guess(message))


class CommandParser(Parser):
    """Take `verify MODEL --threads 2 SAMPLE`, which argparse refuses by itself.

    argparse gives a list its arguments where it first meets some: after `MODEL` an empty list of
    samples is taken, and what follows the option belongs to nobody.
    """

    _reading = False

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse options first, and then what is left of the arguments; all must be known."""
        if self._reading:  # some versions of argparse come back here for each of the two passes
            return super().parse_known_args(args, namespace)
        self._reading = True
        try:
            found, left = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._reading = False
        if left:
            self.error(self._unknown(left))
        return found, left

    def _unknown(self, left: Sequence[str]) -> str:
        """What is said of arguments that are none of the command's."""
        options = [text for text in left if text.startswith("-")]
        if not options:
            return f"got more than expected: {' '.join(left)}"
        known = [name for name in self._option_string_actions if name.startswith("--")]
        shown = []
        for option in options:
            meant = guess(option.partition("=")[0], known)
            shown.append(
                f"there is no option {option}{f'; did you mean {meant}?' if meant else ''}"
            )
        return "; ".join(shown) + f" (`{self.prog} --help` lists all)"


def guess(word: str, known: Iterable[str]) -> str | None:
    """The known word that a wrong one is most like, None where it is like none."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return near[0] if near else None


def with_a_guess(message: str) -> str:
    """argparse's message about a wrong choice, and what may have been meant."""
    found = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
    if found is None:
        return message
    meant = guess(found[1], re.findall(r"[^', ]+", found[2]))
    return f"{message}; did you mean {meant}?" if meant else message
