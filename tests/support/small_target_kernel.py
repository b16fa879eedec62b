"""One vector addition, to see what a target makes of it."""

from __future__ import annotations

from leanconv.codegen.emitter import Function, vector
from leanconv.codegen.kernel import Kernel
from leanconv.records import dataclass
from leanconv.target import Target


@dataclass(frozen=True)
class Add(Kernel):
    """y = x + x for one vector."""

    lanes: int

    @property
    def operands(self) -> tuple[str, ...]:
        return ("x", "y")

    @property
    def chunks(self) -> int:
        return 1

    def emit(self, target: Target) -> str:
        e = Function(self.NAME)
        x = e.load(e.pointer(0), vector("float", self.lanes))
        e.store(x + x, e.pointer(1))
        return e.finish()
