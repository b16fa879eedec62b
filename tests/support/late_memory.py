"""What the runs of a network take behind its compiled part, measured, for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import leanconv as lc
from leanconv.graph.limits import RunBudget
from support.onnx_models import Array


class Taken:
    """The most bytes that were in use at once.

    Attributes:
        arrays: of those that NumPy computed.
        together: with the networks that are compiled in runs.
    """

    arrays = together = 0


@contextmanager
def taken() -> Iterator[Taken]:
    """Measure all runs inside."""
    found = Taken()

    def looked(function: Callable[..., None]) -> Callable[..., None]:
        def call(self: RunBudget, *args: Any) -> None:
            function(self, *args)
            kept = self._kept.bytes if self._kept else 0
            found.arrays = max(found.arrays, self._alive)
            found.together = max(found.together, self._alive + kept)

        return call

    made, expect = looked(RunBudget.made), looked(RunBudget.expect)
    with patch.multiple(RunBudget, made=made, expect=expect):
        yield found


def taken_by(network: lc.Network, feed: Mapping[str, Array]) -> Taken:
    """What one run takes."""
    with taken() as found:
        network.run(feed)
    return found
