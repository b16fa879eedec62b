"""Operations on constants, which are computed as a file is read, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import TensorProto, helper

from support.folded_cases import FOLDS, HELD, IMAGE
from support.onnx_models import agree, model


def folded(nodes: list[Any], constants: dict[str, Any], opset: int = 17) -> None:
    """Check nodes that make the constant `k` from the shape of `x`, which is then added to it."""
    proto = model(
        [
            *nodes,
            helper.make_node("Cast", ["k"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "f"], ["y"]),
        ],
        {"x": ("N", 6, "H", 7)},
        ["y"],
        constants,
        opset,
    )
    agree(proto, {"x": IMAGE})


@pytest.mark.parametrize("name", FOLDS)
def test_folded_operation(name: str) -> None:
    each = FOLDS[name]
    held = {key: HELD[key] for key in each.input}
    folded([each], held)
