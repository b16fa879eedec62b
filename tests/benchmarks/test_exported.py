"""`exported.py` judges files by onnxruntime and says what is refused; torch is not needed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import exported
import leanconv
from support.hostile import node
from support.onnx_models import model

PLAIN = exported.Architecture(lambda: None, (8, 8))


def network(*nodes: onnx.NodeProto, shape: Any = (1, 3, 8, 8)) -> bytes:
    w = np.ones((2, 3, 3, 3), "f4")
    return bytes(model(nodes, {"x": shape}, ["y"], {"w": w}).SerializeToString())


def test_files_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = network(node("Conv", "x w", "y"))
    assert exported.compared(PLAIN, conv, False) == (exported.RIGHT, "")
    opened = network(node("Conv", "x w", "y"), shape=("n", 3, "h", "w"))
    assert exported.compared(PLAIN, opened, True) == (exported.RIGHT, "")
    what, text = exported.compared(PLAIN, network(node("Bernoulli", "x", "y")), False)
    assert (what, "Bernoulli" in text) == (exported.REFUSED, True)
    run = leanconv.load(conv, threads=1).run

    class Spoiled:
        def run(self, names: None, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [y + 1 for y in run(names, feed)]

    monkeypatch.setattr(leanconv, "load", lambda data, threads: Spoiled())
    what, text = exported.compared(PLAIN, conv, False)
    assert what == exported.WRONG
    assert "of the largest output" in text
    monkeypatch.setattr(leanconv, "load", lambda data, threads: 1 / 0)
    assert exported.compared(PLAIN, conv, False)[0] == exported.FAILED


def test_shapes_and_cases() -> None:
    assert PLAIN.shape(2, 32) == (2, 3, 40, 40)
    assert exported.Architecture(lambda: None, (8, 8), open_size=False).shape(3, 32) == (3, 3, 8, 8)
    assert exported.Architecture(lambda: None, (20, 16), 0).shape(2, 32) == (2, 52, 16)
    found = list(exported.cases([17, 22]))
    assert len(found) == 6
    assert ("torchscript", 22, False) not in found
    assert len(exported.ARCHITECTURES) >= 20


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        ("dynamo", 17, False, exported.RIGHT, ""),
        ("dynamo", 17, True, exported.REFUSED, "node 'a' (Scan)"),
    ]

    def rows(name: str, opsets: list[int]) -> Iterator[tuple[str, int, bool, str, str]]:
        assert opsets == [17]
        yield from found

    monkeypatch.setattr(exported, "rows", rows)
    assert exported.main(["--only", "^gru$", "--opsets", "17"]) == 0
    printed = capsys.readouterr().out
    assert "| gru | 1 | 1 | 0 | 0 | 0 |" in printed
    assert "gru, dynamo, opset 17, open: refused: node 'a' (Scan)" in printed
    found.append(("dynamo", 17, True, exported.WRONG, "off"))
    assert exported.main(["--only", "^gru$", "--opsets", "17"]) == 1
