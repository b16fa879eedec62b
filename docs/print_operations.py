"""Print `operations.md`: what the records of operations, rules and activations say.

    python docs/print_operations.py            writes docs/operations.md

`tests/test_docs.py` prints it again and compares.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from leanconv.graph.convert import FILE_RULES
from leanconv.graph.ops import OPS, Op
from leanconv.spec.activation import KINDS

PAGE = Path(__file__).resolve().parent / "operations.md"
_COLUMNS = 120
_HEAD = """\
# Operations

Printed by `python docs/print_operations.py` from the records: `Op` of `graph/ops`, `Rule` of
`graph/convert`, `Kind` of `spec/activation.py`.
"""
_FILES = """
## Of ONNX files

These are read, of the domains ai.onnx and com.microsoft, in every opset that has them:
"""
_ACTIVATIONS = """
## Activations

The names that `conv2d(activation=...)` takes; parameters follow behind colons, as in
`leaky_relu:0.1`, and have these defaults. `relu6` is `clip:0:6`. Slopes of `prelu` are given as
`slope`.
"""
_GRAPH = """
## Of graphs

Files' operations become these, which all layers below know. An input with `?` may be absent, `...`
stands for any number. All attributes are there, and lists are tuples: axes are not negative, `pads`
are all begins, then all ends, and `low` and `high` are codes that clamp. One tensor comes out where
nothing else is said.
"""


def page() -> str:
    """The page's text."""
    activations = _table(("name", "parameters"), _activations())
    operations = _table(("operation", "inputs", "attributes", "remarks"), _operations())
    return "\n".join([_HEAD + _FILES, _files(), _ACTIVATIONS, activations, _GRAPH, operations, ""])


def _files() -> str:
    names = ", ".join(sorted(FILE_RULES, key=lambda name: ("." in name, name)))
    return textwrap.fill(f"{names}.", _COLUMNS)


def _activations() -> Iterator[tuple[str, ...]]:
    for name, kind in KINDS.items():
        yield name, ", ".join(f"{key} {value:.4g}" for key, value in kind.parameters.items())


def _operations() -> Iterator[tuple[str, ...]]:
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, op in sorted(OPS.items()):
        alike.setdefault(_row(op), []).append(name)
    for row, names in alike.items():
        yield ", ".join(names), *row


def _row(op: Op) -> tuple[str, ...]:
    inputs, _, remarks = op.signature.partition(";")
    return inputs, ", ".join(op.attributes), remarks.strip()


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
