"""What the tests of imported operations are made of: seeded arrays and lists of cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


class Numbers:
    """Float32 arrays, the same ones in every run."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def normal(self, *shape: int) -> np.ndarray:
        """Of random sign."""
        return self._random.standard_normal(shape).astype(np.float32)

    def positive(self, *shape: int) -> np.ndarray:
        """Between 0.5 and 2."""
        return self._random.uniform(0.5, 2.0, shape).astype(np.float32)


class Cases(list[Any]):
    """Parameters (op, operands, opset, attributes) of a test of one node."""

    def add(
        self, name: str, opsets: tuple[int, ...], op: str, *operands: Any, **attributes: Any
    ) -> None:
        """One node in several opsets."""
        for opset in opsets:
            case = f"{op}-{name}-opset{opset}"
            self.append(pytest.param(op, operands, opset, attributes, id=case))
