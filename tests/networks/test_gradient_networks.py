"""Random networks with their gradients, compiled, against NumPy in float64.

TEST_NETWORKS=1000:300 pytest tests/networks/test_gradient_networks.py      300 others, from 1000
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from leanconv.codegen.host import host
from leanconv.errors import BudgetError
from leanconv.graph.ir import Graph
from leanconv.graph.passes import run_passes
from leanconv.graph.verify import check_flowing, verify
from leanconv.operators import Accuracy
from leanconv.planner.budget import Planner
from leanconv.planner.compiled_network import CompiledNetwork
from leanconv.planner.decisions import Decision
from leanconv.planner.lowered_graph import OwnedGraph
from leanconv.types import FLOAT32, FLOAT64, DType
from support.gradient_networks import GradientNetwork, with_open_batch
from support.interpret import interpret

FIRST, COUNT = map(int, os.environ.get("TEST_NETWORKS", "0:10").split(":"))
SEEDS = range(FIRST, FIRST + COUNT)
BATCHES = (4, 1, 7)  # of a network of any batch, in the order in which they come
# Of a value's largest number, and as a multiple of what plain sums in float32 err by.
_ERROR, _TIMES = {FLOAT32: 2e-4, FLOAT64: 1e-12}, 100.0

Values = Mapping[str, np.ndarray]


def compiled(
    graph: Graph,
    threads: int,
    limit: int | None = None,
    decisions: Sequence[Decision] | None = None,
) -> CompiledNetwork:
    """The graph within a limit, or within the least that works, or as decided."""
    planner = Planner(graph, host(), threads, Accuracy())
    if decisions is not None:
        return CompiledNetwork(OwnedGraph(graph), planner, decisions=decisions)
    try:
        made = CompiledNetwork(OwnedGraph(graph), planner, limit)
    except BudgetError as error:
        limit = max(limit or 0, error.smallest_bytes or 0)
        made = CompiledNetwork(OwnedGraph(graph), planner, limit)
    assert limit is None or made.plan.memory_bytes <= limit
    return made


def results_of(network: CompiledNetwork, inputs: Values) -> dict[str, np.ndarray]:
    """Run into arrays full of NaN."""
    kinds = network.plan.results
    found = {name: np.full(k.shape, np.nan, str(k.dtype)) for name, k in kinds.items()}
    given = [np.ascontiguousarray(inputs[name]) for name in network.plan.inputs]
    network.run([array.ctypes.data for array in (*given, *found.values())])
    return found


class Wanted:
    """What a network gives in float64, and how far off its values may be.

    A sum may cancel: what plain sums in float32 err by says how much of it is left.
    """

    def __init__(self, seed: int, batch: int = 0) -> None:
        plain, exact = (GradientNetwork(seed, dtype, batch) for dtype in (FLOAT32, FLOAT64))
        self.values = interpret(exact.graph(), exact.inputs)
        rough = interpret(plain.graph(), plain.inputs)
        self._errors = {name: np.abs(rough[name] - y).max() for name, y in self.values.items()}

    def check(self, found: Values, dtype: DType, told: str) -> None:
        """Compare all values."""
        assert list(found) == list(self.values)
        for name, wanted in self.values.items():
            rounding = self._errors[name] * (dtype.roundoff / FLOAT32.roundoff)
            bound = max(_ERROR[dtype] * np.abs(wanted).max(), _TIMES * rounding)
            away = np.abs(found[name] - wanted).max()
            assert away <= bound, f"{name} is off by {away:.2e} of {bound:.2e}: {told}"


def ready(graph: Graph) -> Graph:
    """The graph after the passes."""
    return check_flowing(run_passes(verify(graph)))


@pytest.mark.parametrize("seed", SEEDS)
def test_networks_and_their_gradients(seed: int) -> None:
    """Right; a plan has the same bits by any number of threads; right within less memory."""
    dtype, wanted = (FLOAT32, FLOAT32, FLOAT64)[seed % 3], Wanted(seed)
    made = GradientNetwork(seed, dtype)
    graph = ready(made.graph())
    free = compiled(graph, 2)
    found = results_of(free, made.inputs)
    wanted.check(found, dtype, f"seed {seed}")
    for threads in (1, 5):
        same = compiled(graph, threads, decisions=free.decided.decisions)
        for name, array in results_of(same, made.inputs).items():
            np.testing.assert_array_equal(array, found[name], f"{name}, {threads} threads")
    for limit in (free.plan.memory_bytes * 3 // 4, 1):
        lean = compiled(graph, 2, limit)
        wanted.check(results_of(lean, made.inputs), dtype, f"seed {seed}, limit {limit}")


@pytest.mark.parametrize("seed", SEEDS)
def test_networks_of_any_batch(seed: int) -> None:
    for batch in BATCHES:
        made, graph = with_open_batch(seed, FLOAT32, batch)
        found = results_of(compiled(ready(graph), 2), made.inputs)
        Wanted(seed, batch).check(found, FLOAT32, f"seed {seed}, batch {batch}")
