"""No lock stays taken where a signal handler's exception comes at the end of a loop.

Python 3.13 covers the jump back of a `while` loop by no handler, neither by that of a `with` nor by
a `finally` around it: an exception that comes there passes by the release of the lock.
"""

from __future__ import annotations

import ast
import dis
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
_LOCK = re.compile(r"lock|held|bare|growing|making", re.I)
_JUMP = re.compile("(POP_)?JUMP_BACKWARD(_IF_.*)?")
pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="these Pythons have no table of handlers"
)


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


def _uncovered(text: str) -> set[int]:
    """Lines of the loops whose jump back no handler covers."""
    lines = set()
    for code in _code_objects(compile(text, "", "exec")):
        read = dis.Bytecode(code)
        for instruction in read:
            if _JUMP.fullmatch(instruction.opname) and not any(
                entry.start <= instruction.offset < entry.end for entry in read.exception_entries
            ):
                lines.add(instruction.positions.lineno)
    return lines


def _guarded_loops(text: str) -> Iterator[int]:
    """Lines of `while` loops in a block that releases a lock at its end."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.With):
            guarded = any(_LOCK.search(ast.unparse(item.context_expr)) for item in node.items)
        else:
            guarded = isinstance(node, ast.Try) and any(
                "release" in ast.unparse(each) for each in node.finalbody
            )
        if guarded:
            loops = (each for part in node.body for each in ast.walk(part))
            yield from (loop.lineno for loop in loops if isinstance(loop, ast.While))


def test_no_loop_passes_by_the_release_of_a_lock() -> None:
    found = []
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        loops = set(_guarded_loops(text)) if "while " in text else set()
        if loops:
            found += [f"{path.relative_to(SRC)}:{line}" for line in loops & _uncovered(text)]
    assert found == []


def test_such_a_loop_is_found() -> None:
    assert list(_guarded_loops("with lock.held:\n    while a:\n        b()\n")) == [2]
    assert _uncovered("while a:\n    b()\n") == {1}
