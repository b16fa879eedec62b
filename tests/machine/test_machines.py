"""The machines that this one is taken for: what is described, and in which processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from leanconv.codegen import host
from leanconv.target import PRESETS, preset
from support import machines

WIDE = replace(preset("znver5"), name="host", cpu="a wide one", features="+its,+own")
_HOST = """
from leanconv.codegen.host import host
here = host()
print(here.name, here.isa, here.fma_units, here.l1_bytes, here.l2_bytes, here.l3_bytes)
"""


@pytest.mark.parametrize("name", machines.MACHINES)
def test_a_process_takes_itself_for_the_machine(name: str) -> None:
    if machines.why_not(name):
        pytest.skip(machines.why_not(name))
    result = subprocess.run(
        [sys.executable, "-c", _HOST],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "TEST_MACHINE": name,
            "PYTHONPATH": os.pathsep.join([machines.STARTUP, *sys.path]),
        },
    )
    wanted = replace(preset(name), **machines.MACHINES[name])
    facts = wanted.isa, wanted.fma_units, wanted.l1_bytes, wanted.l2_bytes, wanted.l3_bytes
    assert result.stdout.split() == ["host", *map(str, facts)]


def test_code_is_the_processors_own_unless_it_is_wider() -> None:
    other = machines.described("sapphirerapids", WIDE)
    assert (other.cpu, other.features, other.name) == (WIDE.cpu, WIDE.features, "host")
    assert (other.l2_bytes, other.l3_bytes) == (2 * 2**20, 260 * 2**20)
    assert machines.described("znver4", WIDE).fma_units == 1
    narrow = machines.described("haswell", WIDE)
    assert (narrow.cpu, narrow.features) == ("haswell", "")
    assert (narrow.vector_bytes, narrow.registers) == (32, 16)


@pytest.mark.parametrize("name", ["znver3", "neoverse-n1"])
def test_what_cannot_run_here_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.host, "__wrapped__", lambda: PRESETS[name])
    assert (
        machines.why_not("znver4")
        == f"{name} ({PRESETS[name].isa}) cannot run code for znver4 (avx512)"
    )
    assert machines.described("znver4", PRESETS[name]) is PRESETS[name]
    assert bool(machines.why_not("haswell")) == (name == "neoverse-n1")


def test_an_unknown_machine_lists_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MACHINE", "pentium")
    with pytest.raises(LookupError, match="'pentium'; expected one of sapphirerapids, haswell"):
        machines.describe_host()
