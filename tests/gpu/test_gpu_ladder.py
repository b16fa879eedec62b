"""The ladder's kernels for a GPU, in Triton's interpreter, against NumPy."""

from __future__ import annotations

import pytest

from ladder.network import FUTURE, VERSIONS
from support.gpu.workers import HAS_TRITON, REASON, rows, start

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason=REASON)


def test_every_step_answers_as_numpy_does() -> None:
    found = rows(start("ladder_worker", TRITON_INTERPRET="1", OMP_NUM_THREADS="1"), 120)
    assert [row["version"] for row in found] == [v.name for v in (*VERSIONS, FUTURE)]
    assert max(row["error"] for row in found) < 1e-13
    copies = [row["copies"] for row in found]
    assert copies[0] == copies[1] > copies[2] == copies[-1] == 3 * 10
    assert found[-1]["kernels"] > found[-2]["kernels"]
