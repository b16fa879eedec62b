"""Lines of Markdown of at most 120 columns; tables and code are left as they are.

python benchmarks/pages/wrapping.py FILE…     wrap pages that are written by hand
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

COLUMNS = 120
_ITEM = re.compile(r"( *)([-*+] |\d+[.)] )")
_SPECIAL = re.compile(r"\||#|<|!\[|$")  # a table, a heading, a comment, a picture, nothing
_SPAN = re.compile(r"`[^`]*`")
_STARTS = re.compile(r"([-+*>]|#+|\d+[.)])$")  # words that would begin something else in a new line
_GLUE = "\0"


def wrapped(text: str) -> str:
    """Break lines of paragraphs and lists that are too long; only blocks with such a line change.

    Code spans stay in one line, and no line begins with what would make it an item or a heading.
    """
    return (
        "\n".join(line for block in _blocks(text.splitlines()) for line in _wrapped(block)) + "\n"
    )


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs and items; everything else line by line."""
    block: list[str] = []
    fenced, hang = False, 0  # in fenced code; how far the lines of an item are indented
    for line in lines:
        fence = line.lstrip().startswith("```")
        item = None if fenced else _ITEM.match(line)
        indent = len(line) - len(line.lstrip())
        if not block and line.strip() and not item and indent < hang:
            hang = 0
        code = not block and indent >= hang + 4
        if fenced or fence or code or (not item and _SPECIAL.match(line.lstrip())):
            yield from [block] if block else []
            block = []
            yield [line]
            fenced ^= fence
            continue
        if item:
            yield from [block] if block else []
            block, hang = [], len(item[0])
        block.append(line)
    yield from [block] if block else []


def _wrapped(block: list[str]) -> list[str]:
    first = block[0]
    item, indent = _ITEM.match(first), len(first) - len(first.lstrip())
    code = not item and indent >= 4
    if (
        max(map(len, block)) <= COLUMNS
        or (len(block) == 1 and code)
        or _SPECIAL.match(first.lstrip())
    ):
        return block
    first = item[0] if item else " " * indent
    text = " ".join([block[0][len(first) :], *(line.strip() for line in block[1:])])
    text = _SPAN.sub(lambda span: span[0].replace(" ", _GLUE), text)
    words: list[str] = []
    for word in text.split():
        if words and _STARTS.match(word):
            words[-1] += _GLUE + word
        else:
            words.append(word)
    lines = textwrap.wrap(
        " ".join(words),
        COLUMNS,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(wrapped(path.read_text("utf-8")), "utf-8")
