"""The mode in which every buffer lies between guard pages: what it finds, what it reaches."""

from __future__ import annotations

import mmap
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

import leanconv as lc
from examples.networks import squeezenet_like
from leanconv.planner import weight_streaming
from support import guard_pages
from support.cache_check import run_program
from support.guarded_programs import GuardedProgram, GuardedStreamProgram, install

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="protects pages with mprotect"
)
PAGE = mmap.PAGESIZE
SOURCES = Path(lc.__file__).parent
# The modules whose programs `install` guards.
GUARDED = {"planner/compiled_network.py", "planner/packing.py", "runtime/portable.py"}
UNGUARDED = {"api/snapshots.py"}  # what guarded tests run is not kept

_SHIFTED = """
import numpy as np
from leanconv.codegen.kernel import Kernel
from support import guard_pages
from support.kernel_runner import run_kernel
from support.small_kernels import Shifted
guard_pages.use({side!r})
x = np.ones(8, np.float32)
print(run_kernel(Shifted({by}), x, np.full_like(x, np.nan)).tolist())
"""
_PLAN = """
from types import SimpleNamespace
import numpy as np, pytest
import leanconv as lc
from leanconv.algorithms.direct.kernel import DirectConv
from leanconv.api import compiled_conv
from leanconv.codegen.epilogue import Epilogue
from leanconv.planner import packing
from leanconv.runtime.program import Stage
from support.guarded_programs import install
from support.small_kernels import Shifted
install(pytest.MonkeyPatch(), {side!r})
from leanconv.planner.packing import Stage as plain
def stage(form, operands, scratch):
    return plain(form, (operands[0], operands[-1]), scratch)
inner = packing.compiler.load
def found(kernels, target):
    library = inner([Shifted({by})], target)
    form = library.form(Shifted({by}))
    library.form = lambda kernel: form
    return library
whole = compiled_conv.candidate_program
def program(*given, **options):
    with pytest.MonkeyPatch.context() as patch:  # not what packs
        patch.setattr(packing, "Stage", stage)
        patch.setattr(packing, "compiler", SimpleNamespace(load=found))
        return whole(*given, **options)
compiled_conv.candidate_program = program
plan = lc.plan_conv2d((1, 1, 2, 4), np.ones((1, 1, 1, 1), "f4"), algorithm="direct", threads=1)
print(plan(np.ones((1, 1, 2, 4), "f4")).tolist())
"""


@pytest.mark.parametrize("program", [_SHIFTED, _PLAN], ids=["kernel", "plan"])
@pytest.mark.parametrize(("side", "by"), [("end", 1), ("start", -1)])
def test_a_read_beyond_a_buffer_ends_the_process(program: str, side: str, by: int) -> None:
    result = run_program(program.format(side=side, by=by))
    assert result.returncode == -signal.SIGSEGV, result.stdout + result.stderr


@pytest.mark.parametrize("program", [_SHIFTED, _PLAN], ids=["kernel", "plan"])
@pytest.mark.parametrize(("side", "by"), [("end", -1), ("start", 1)])
def test_on_the_other_side_it_reads_nan(program: str, side: str, by: int) -> None:
    result = run_program(program.format(side=side, by=by))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("nan") == 1


@pytest.mark.parametrize("side", guard_pages.SIDES)
def test_all_operands_of_a_network_meet_a_guard(side: str) -> None:
    model = squeezenet_like(batch=1, image=32).SerializeToString()
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("f4")
    expected = lc.load(model)(x)
    with pytest.MonkeyPatch.context() as patch:
        install(patch, side)
        network = lc.load(model)
        program = network._current.network._program
        assert isinstance(program, GuardedProgram)
        for _ in range(2):
            assert np.array_equal(network(x), expected)
    check(program, side)
    assert len(program.regions) > 20  # arrays, weights, what lies between layers


@pytest.mark.parametrize("side", guard_pages.SIDES)
def test_weights_that_a_run_reads_meet_a_guard(side: str) -> None:
    model = squeezenet_like(batch=1, image=32).SerializeToString()
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("f4")
    expected = lc.load(model)(x)
    with pytest.MonkeyPatch.context() as patch:
        install(patch, side)
        patch.setattr(weight_streaming, "STAYS_BYTES", 256)
        network = lc.load(model, stream_weights=True)
        program = network._current.network._program
        assert isinstance(program, GuardedStreamProgram)
        for _ in range(2):
            assert np.array_equal(network(x), expected)
    assert len(network.plan.readings) > 5
    check(program, side)


@pytest.mark.parametrize("side", guard_pages.SIDES)
@pytest.mark.parametrize("algorithm", ["direct", "winograd:form=stages", "im2col", "mec", "fft"])
def test_all_operands_of_a_plan_meet_a_guard(side: str, algorithm: str) -> None:
    random = np.random.default_rng(0)
    x, y = (random.standard_normal((1, 5, 9, 11)).astype("f4") for _ in range(2))
    w = random.standard_normal((5, 5, 3, 3)).astype("f4")
    given = {"padding": 1, "algorithm": algorithm, "residual": True, "threads": 2}
    expected = lc.plan_conv2d(x.shape, w, **given)(x, residual=y)
    with pytest.MonkeyPatch.context() as patch:
        install(patch, side)
        plan = lc.plan_conv2d(x.shape, w, **given)
        assert isinstance(plan.layer.program, GuardedProgram)
        assert np.array_equal(plan(x, residual=y), expected)
        check(plan.layer.program, side)
        held = y.copy()
        assert np.array_equal(plan(x, out=held, residual=held), expected)  # in its place
        plan.repack(2 * w, None)
        assert not np.array_equal(plan(x, residual=y), expected)


def check(program: GuardedProgram, side: str) -> None:
    """Every operand of every stage is in a region, and every region meets a guard."""
    for region in (*program.regions, *program._scratches):
        end = region.address + region.data.size
        gap = -end % PAGE if side == "end" else region.address % PAGE
        assert gap < 64
        assert not gap or region.address % 64 == 0
    held = [(region.address, region.address + region.data.size) for region in program.regions]
    for address in program.addresses:
        assert any(first <= address <= last for first, last in held)


def test_all_programs_of_the_package_are_known_to_the_mode() -> None:
    found = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if re.search(r"(?<!class )\bProgram\(", path.read_text()) and "gpu" not in path.parts
    }
    assert found == GUARDED | UNGUARDED


def test_an_unknown_side_is_an_error() -> None:
    with pytest.raises(LookupError, match="end, start"):
        guard_pages.use("middle")
