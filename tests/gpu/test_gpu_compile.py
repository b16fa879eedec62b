"""Every configuration that can be chosen, compiled for sm_80 and sm_90, its resources asserted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.gpu.workers import HAS_TRITON, REASON, rows, start

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON, reason=REASON),
    pytest.mark.timeout(600),  # what all tests share is made in the first one
]
SECONDS = 500
REGISTERS = 65536  # of a processor
SHARED = {80: 166912, 90: 232448}
TENSOR = {80: ("HMMA",), 90: ("HGMMA",)}
Row = dict[str, Any]


Compiled = dict[int, list[Row]]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """Both architectures at once, each in a process, with a cache of their own."""
    folder = str(tmp_path_factory.mktemp("cubins"))
    workers = {
        arch: start("compile_worker", str(arch), LEANCONV_CACHE_DIR=folder) for arch in (80, 90)
    }
    return {arch: rows(worker, SECONDS) for arch, worker in workers.items()}


def _count(row: Row, *names: str) -> int:
    counts = row["instructions"].items()
    return sum(count for name, count in counts if name.split(".")[0] in names)


def _of(compiled: Compiled, arch: int, function: str) -> Iterator[Row]:
    return (row for row in compiled[arch] if row["function"] == function)


@pytest.mark.parametrize("arch", [80, 90])
def test_all_compile_within_the_machine(compiled: Compiled, arch: int) -> None:
    assert len(compiled[arch]) > 65
    for row in compiled[arch]:
        # Triton 3.9 keeps one pair of registers of one tile on the stack, 3.6 nothing.
        spilled = 8 if row["function"] == "pointwise.sliced_gemm" else 0
        assert row["stack"] <= spilled, row["name"]
        assert spilled or _count(row, "LDL", "STL") == 0, row["name"]
        assert row["registers"] * 32 * row["warps"] <= REGISTERS, row["name"]
        assert row["shared"] <= SHARED[arch], row["name"]
        assert not row["race"], row["name"]  # seen on a device with boxes of float16


@pytest.mark.parametrize("arch", [80, 90])
def test_products_run_on_tensor_cores(compiled: Compiled, arch: int) -> None:
    checked = 0
    for row in _of(compiled, arch, "gemm.segment_gemm"):
        mode, kind = row["constants"]["MODE"], row["types"]["x"]
        names = ("DMMA",) if kind == "*fp64" else ("FFMA",) if mode == "ieee" else TENSOR[arch]
        assert _count(row, *names) > 0, row["name"]
        if mode in ("tf32x3", "fp16x3"):  # three products of each
            assert _count(row, *names) % 3 == 0, row["name"]
        if mode == "ieee" and kind == "*fp32":  # nothing but IEEE arithmetic on the strict path
            assert _count(row, "HGMMA", "HMMA") == 0, row["name"]
        checked += 1
    assert checked > 40


@pytest.mark.parametrize("arch", [80, 90])
def test_aligned_loads_are_wide(compiled: Compiled, arch: int) -> None:
    checked = 0
    for row in _of(compiled, arch, "gemm.segment_gemm"):
        # Programs of the small tile with eight warps have less than 16 bytes for a thread.
        if row["name"].startswith("aligned") and "32x32x16 w8" not in row["name"]:
            kind = "LDGSTS" if row["constants"]["FLAGS"] != "read" else "LDG"
            copies = {k: v for k, v in row["instructions"].items() if k.startswith(kind)}
            if row["constants"]["FLAGS"] == "read":  # one stage: loads of flags, bias and scale too
                assert any(name.endswith(".128") for name in copies), row["name"]
                continue
            assert copies, row["name"]
            assert all("128" in name.split(".")[-1] for name in copies), (row["name"], copies)
            checked += 1
    assert checked > 20


def test_depthwise_loads_and_stores_are_wide(compiled: Compiled) -> None:
    rows = [
        *_of(compiled, 90, "depthwise.depthwise"),
        *_of(compiled, 90, "depthwise.depthwise_row"),
    ]
    assert {row["function"] for row in rows} == {"depthwise.depthwise", "depthwise.depthwise_row"}
    for row in rows:
        if "ic96" in row["name"]:
            loads = {k: v for k, v in row["instructions"].items() if k.startswith(("LDG", "STG"))}
            wide = sum(v for k, v in loads.items() if "128" in k or "64" in k)
            assert wide >= 0.9 * sum(loads.values()), (row["name"], loads)


def _sizes(types: dict[str, str]) -> list[int]:
    """Bytes of each parameter, as the launcher passes them: maps of tensors with their shapes."""
    sizes = []
    for kind in types.values():
        if kind.startswith("tensordesc"):
            rank = kind.count(",") + 1
            sizes += [128, *[4] * rank, *[8] * rank]
        else:
            sizes.append(8 if kind[0] == "*" or kind in ("i64", "fp64") else 4)
    return [*sizes, 8, 8]


@pytest.mark.parametrize("arch", [80, 90])
def test_parameters_are_laid_as_the_launcher_passes_them(compiled: Compiled, arch: int) -> None:
    for row in compiled[arch]:
        assert row["parameters"] == _sizes(row["types"]), row["name"]


def test_patches_arrive_by_tensor_copies_alone(compiled: Compiled) -> None:
    found = list(_of(compiled, 90, "patches.patch_gemm"))
    assert len(found) >= 14
    assert {row["constants"]["WINDOWS"] for row in found} == {False, True}
    for row in found:
        split = row["constants"]["MODE"] in ("tf32x3", "fp16x3")
        # x in boxes of four axes, of windows five, each half of the weights in boxes of two.
        boxes, windows = row["instructions"], row["constants"]["WINDOWS"]
        taken, other = ("UTMALDG.5D", "UTMALDG.4D")[:: 1 if windows else -1]
        assert boxes[taken] > 0, row["name"]
        assert other not in boxes, row["name"]
        assert boxes["UTMALDG.2D"] == (1 + split) * boxes[taken], row["name"]
        assert _count(row, "HGMMA") > 0, row["name"]
        assert _count(row, "LDGSTS") == 0, row["name"]
    assert not list(_of(compiled, 80, "patches.patch_gemm"))


def test_boxes_go_from_shared_memory_into_products(compiled: Compiled) -> None:
    found = list(_of(compiled, 90, "pointwise.box_gemm"))
    assert {row["constants"]["MODE"] for row in found} == {"tf32", "native"}
    for row in found:
        assert row["instructions"]["UTMALDG.2D"] > 0, row["name"]
        assert _count(row, "HGMMA") > 0, row["name"]
        assert _count(row, "LDGSTS") == 0, row["name"]
        assert not row["from_registers"], row["name"]
    assert not list(_of(compiled, 80, "pointwise.box_gemm"))
