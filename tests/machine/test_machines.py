"""The machines that this one is taken for: what is described, and in which processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from leanconv.codegen import host
from leanconv.target import PRESETS, preset
from support import machines

ROOT = Path(__file__).resolve().parents[2]
WIDE = replace(preset("znver5"), name="host", cpu="a wide one", features="+its,+own")
_HOST = """
from leanconv.codegen.host import host
here = host()
print(here.name, here.isa, here.fma_units, here.l1_bytes, here.l2_bytes, here.l3_bytes)
"""
_MARKED = """
import subprocess, sys
import pytest
from leanconv.codegen.host import host

presets = pytest.mark.presets

@presets
def test_asks():
    assert host().l2_bytes

@presets
def test_hides_that_it_asks():
    try:
        host().isa
    except AssertionError:
        pass

@presets
def test_starts_a_process():
    subprocess.run([sys.executable, "-c", ""])

@presets
def test_names_its_machines():
    assert host().triple

def test_is_not_marked():
    assert host().l2_bytes
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
    l3_bytes = wanted.costs.l3_found(wanted.l3_bytes)
    facts = wanted.isa, wanted.fma_units, wanted.l1_bytes, wanted.l2_bytes, l3_bytes
    assert result.stdout.split() == ["host", *map(str, facts)]


def test_code_is_the_processors_own_unless_it_is_wider() -> None:
    other = machines.described("sapphirerapids", WIDE)
    assert (other.cpu, other.features, other.name) == (WIDE.cpu, WIDE.features, "host")
    assert (other.l2_bytes, other.l3_bytes) == (2 * 2**20, 64 * 2**20)
    assert machines.described("znver4", WIDE).fma_units == 1
    narrow = machines.described("haswell", WIDE)
    assert (narrow.cpu, narrow.features) == ("haswell", "")
    assert (narrow.vector_bytes, narrow.registers) == (32, 16)


def test_a_machine_that_this_one_is_needs_no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in machines.MACHINES:
        other = machines.described(name, WIDE)
        assert machines.described(name, other) == other
        monkeypatch.setattr(host.host, "__wrapped__", lambda other=other: other)
        assert [each for each in machines.MACHINES if machines.is_here(each)] == [name]
        changed = replace(other, l2_bytes=other.l2_bytes // 2)
        monkeypatch.setattr(host.host, "__wrapped__", lambda changed=changed: changed)
        assert not machines.is_here(name)


def test_what_names_its_machines_is_left_out_as_another_one_and_held_to_it(
    tmp_path: Path,
) -> None:
    """A test with the mark that asks this machine for what decides, or starts a process, fails."""
    (tmp_path / "test_marked.py").write_text(_MARKED)
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "--rootdir", str(ROOT)]
    command = [sys.executable, "-m", "pytest", *options, "-c", str(ROOT / "pyproject.toml")]
    command += ["--confcutdir", str(tmp_path), "-p", "conftest", str(tmp_path / "test_marked.py")]

    def closing(**environment: str) -> list[str]:
        paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
        given = {**os.environ, "PYTHONPATH": paths, **environment}
        result = subprocess.run(command, capture_output=True, text=True, env=given, cwd=ROOT)
        return result.stdout.strip().splitlines()

    found = closing(TEST_MACHINE="")
    failed = {
        line.split("::")[1].split(" ")[0] for line in found if line[:6] in ("FAILED", "ERROR ")
    }
    assert failed == {"test_asks", "test_hides_that_it_asks", "test_starts_a_process"}, found
    other = next(each for each in machines.MACHINES if not machines.is_here(each))
    if not machines.why_not(other):
        assert "1 passed, 4 deselected" in closing(TEST_MACHINE=other)[-1]


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
