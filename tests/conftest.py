"""What a test session leaves out, and the machine that it takes this one for."""

from __future__ import annotations

import os

import pytest

from support import machines

# Now, because other conftest.py, which come next, import leanconv.
MACHINE = machines.describe_host()
GUARDED = os.environ.get("TEST_GUARDED", "")


def pytest_configure(config: pytest.Config) -> None:
    """End well where this machine cannot run the code of the one that it is taken for."""
    reason = machines.why_not(MACHINE) if MACHINE else ""
    if reason:
        pytest.exit(f"nothing to test: {reason}", returncode=0)
    if GUARDED:
        from support.guarded_programs import install

        install(pytest.MonkeyPatch(), GUARDED)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which machine this one is taken for, and which side of buffers is guarded."""
    guarded = [f"guard pages: at the {GUARDED} of every buffer"] if GUARDED else []
    if MACHINE is None:
        return guarded
    from leanconv.codegen.host import host

    here = host()
    return [
        f"machine: {MACHINE}, {here.isa}, {here.fma_units:g} FMA units, "
        f"L1 {here.l1_bytes >> 10} KiB, L2 {here.l2_bytes >> 10} KiB, L3 {here.l3_bytes >> 20} MiB",
        *guarded,
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked exhaustive unless `-m` speaks of it."""
    if "exhaustive" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left_out)
