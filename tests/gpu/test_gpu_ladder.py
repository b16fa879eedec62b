"""The ladder's kernels for a GPU, in Triton's interpreter, against NumPy."""

from __future__ import annotations

import sys

import pytest

import gpu_ladder
from ladder.network import FUTURE, VERSIONS
from leanconv.errors import InputError
from support.gpu.workers import HAS_TRITON, REASON, rows, start


@pytest.mark.skipif(not HAS_TRITON, reason=REASON)
def test_every_step_answers_as_numpy_does() -> None:
    found = rows(start("ladder_worker", TRITON_INTERPRET="1", OMP_NUM_THREADS="1"), 120)
    assert [row["version"] for row in found] == [v.name for v in (*VERSIONS, FUTURE)]
    assert max(row["error"] for row in found) < 1e-13
    copies = [row["copies"] for row in found]
    assert copies[0] == copies[1] > copies[2] == copies[-1] == 3 * 6
    assert found[-1]["kernels"] > found[-2]["kernels"]


def test_without_torch_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(sys, "argv", ["gpu_ladder.py"])
    with pytest.raises(InputError, match="torch is not installed; install it for CUDA"):
        gpu_ladder.main()
