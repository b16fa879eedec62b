"""The example that trains the digit reader by PyTorch and with leanconv's convolutions."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed: leanconv[torch]")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("PIL", reason="Pillow is not installed")

from examples.digits.compare_training import Training, table, train

pytestmark = pytest.mark.once


@pytest.mark.slow
def test_both_learn_alike() -> None:
    expected, found = (train(engine, 3, 8, 1) for engine in ("torch", "leanconv"))
    assert found.losses == pytest.approx(expected.losses, rel=1e-3)
    lines = table({"torch": expected, "leanconv": found}).splitlines()
    assert [line.split()[0] for line in lines] == ["step", "1", "3", "ms", "peak", "held"]


def test_the_table_of_a_long_run() -> None:
    lines = table({"torch": Training([1.0] * 200, 2.0, 300.0, 0.5)}).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["1", "10", "20"]
