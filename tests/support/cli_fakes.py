"""A network that answers by a rule, so that the command line is tested without a compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from leanconv.api.backend import Footprint, ProfileRow
from leanconv.api.inputs import InputSpec
from leanconv.target import preset
from leanconv.types import FLOAT32


@dataclass
class FakeNetwork:
    """Ten classes; the class is the mean brightness of the image, in tenths."""

    shape: tuple[Any, ...] = ("N", 1, 8, 8)
    metadata: dict[str, str] = field(default_factory=lambda: {"input_scale": "0.00392156862745098"})
    used_bytes: int = 4096
    options: dict[str, Any] = field(default_factory=dict)
    seen: list[np.ndarray] = field(default_factory=list)
    results: dict[str, np.ndarray] | None = None  # instead of the ten classes

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (InputSpec("x", self.shape, FLOAT32),)

    @property
    def plan(self) -> Any:
        step = SimpleNamespace(
            name="conv0",
            op="Conv",
            algorithm="direct",
            flops=1000,
            weight_bytes=64,
            output_bytes=32,
        )
        return SimpleNamespace(
            arena_bytes=1024,
            weight_bytes=3072,
            memory_bytes=4096,
            steps=(step,),
            threads=2,
            predicted_ns=2280,
            dtype=FLOAT32,
            inputs={"x": SimpleNamespace(dtype=FLOAT32)},
            target=preset("znver4"),
        )

    def __call__(self, x: np.ndarray) -> np.ndarray:
        self.seen.append(x)
        scores = np.zeros((len(x), 10), np.float32)
        scores[:, min(9, max(0, int(float(x.mean()) * 10)))] = 8.0
        return scores

    def bind(self, shapes: dict[str, tuple[int, ...]]) -> Any:
        return self.plan

    def prepare(self, shapes: dict[str, tuple[int, ...]]) -> None:
        pass

    @property
    def memory_bytes(self) -> int:
        return 4096

    def specialise(self, shapes: dict[str, tuple[int, ...]]) -> Any:
        return self

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        y = self(inputs["x"])
        return {"y": y} if self.results is None else dict(self.results)

    def footprint(self) -> Footprint:
        return Footprint(2048, 1024, 1024, 0, None, False, 4096)

    def profile(self, x: dict[str, np.ndarray], repeats: int = 20) -> list[ProfileRow]:
        self(x["x"])
        return [
            ProfileRow("relu0", "Relu", "", repeats, 500.0, 650.0, 400, 900, 0.2, 0, 480),
            ProfileRow("conv0", "Conv", "direct", repeats, 2e3, 5e3, 1500, 9000, 0.8, 64000, 1800),
        ]

    def explain(self) -> str:
        return "conv0: direct, because nothing else is there"


@dataclass(frozen=True)
class Result:
    """What one command line gave."""

    code: int
    out: str
    err: str


Call = Callable[..., Result]
