"""Numerics of every kernel, in Triton's interpreter, through plans and a fake driver."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.gpu.cases import case_names, check
from support.gpu.workers import HAS_TRITON, REASON, rows, start

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason=REASON),
    pytest.mark.timeout(600),  # the first test waits for the processes that run all cases
]
SECONDS = 400
# The kinds of cases that one process runs: two processes take about the same time.
PROCESSES = (("conv",), ("node", "small network", "sample"))
KINDS = tuple(kind for kinds in PROCESSES for kind in kinds)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[tuple[str, str], dict[str, Any]]:
    """What each case that is selected found, by kind and name."""
    wanted: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for item in request.session.items:
        if item.path == request.path and isinstance(item, pytest.Function):
            parameters = item.callspec.params
            wanted[parameters["kind"]].append(parameters["name"])
    workers = [
        start(
            "interpret_worker",
            json.dumps({kind: wanted[kind] for kind in kinds}),
            TRITON_INTERPRET="1",
            OMP_NUM_THREADS="1",
        )
        for kinds in PROCESSES
    ]
    made = [row for worker in workers for row in rows(worker, SECONDS)]
    return {(row["kind"], row["name"]): row for row in made}


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(kind, name, id=f"{kind} {name}") for kind in KINDS for name in case_names(kind)],
)
def test_a_case_is_right(
    found: dict[tuple[str, str], dict[str, Any]], kind: str, name: str
) -> None:
    check(found[kind, name])
