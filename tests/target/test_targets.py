"""Targets: presets that make sense, and the machine that this is."""

from __future__ import annotations

import os
import platform
from contextlib import nullcontext
from dataclasses import FrozenInstanceError, replace

import llvmlite.binding as llvm
import pytest

from leanconv.codegen.host import (
    _NEEDS,
    _allowed,
    _closest_preset,
    _extensions,
    asked,
    check_runs_here,
    host,
    llvm_facts,
    usable_cores,
)
from leanconv.errors import SpecError
from leanconv.target import EXTENSIONS, PRESETS, Target, preset
from leanconv.target.systems import SYSTEMS, architecture, on_system, system_of
from leanconv.types import FLOAT32, FLOAT64
from support.listing import assembly
from support.small_target_kernel import Add

NAMED = (
    "haswell",
    "znver2",
    "znver3",
    "znver4",
    "znver5",
    "skylake-avx512",
    "icelake-server",
    "sapphirerapids",
    "neoverse-n1",
    "apple-m1",
    "armv8-a",
    "wasm32-simd128",
)


def test_the_presets_are_these() -> None:
    assert set(PRESETS) == set(NAMED)
    assert all(PRESETS[name].name == name == preset(name).name for name in NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_facts_agree_with_each_other(name: str) -> None:
    target = preset(name)
    kinds = {"avx2": (32, 16), "avx512": (64, 32), "neon": (16, 32), "wasm": (16, 16)}
    width, registers = kinds[target.isa]
    assert (target.vector_bytes, target.registers) == (width, registers)
    assert target.lanes(FLOAT32) == width // 4
    assert target.lanes(FLOAT64) == width // 8
    assert 1 <= target.fma_units <= 4
    assert 2 <= target.fma_latency <= 6
    assert target.least_accumulators == target.fma_units * target.fma_latency
    assert target.least_accumulators <= target.accumulators < target.registers
    assert 16 * 1024 <= target.l1_bytes < target.l2_bytes
    assert target.l3_bytes == 0 or target.l3_bytes > target.l2_bytes
    arch = {"neon": "aarch64", "wasm": "wasm32"}.get(target.isa, "x86_64")
    assert target.triple.startswith(arch)


@pytest.mark.parametrize("name", NAMED)
def test_llvm_knows_the_processor(name: str) -> None:
    """An unknown name would be compiled for a generic one, with a warning only."""
    target = preset(name)
    listing = assembly(Add(target.lanes(FLOAT32)), target)
    words = {"avx2": "vaddps", "avx512": "%zmm", "neon": "fadd", "wasm": "f32x4.add"}
    word = words[target.isa]
    assert word in listing


def test_extensions_are_named_facts_of_the_presets() -> None:
    for target in PRESETS.values():
        assert list(target.extensions) == sorted(target.extensions)
        assert set(target.extensions) <= set(EXTENSIONS)
    having = {
        name: {target.name for target in PRESETS.values() if name in target.extensions}
        for name in ("vbmi", "vnni", "fp16", "dotprod")
    }
    assert having == {
        "vbmi": {"icelake-server", "sapphirerapids", "znver4", "znver5"},
        "vnni": {"icelake-server", "sapphirerapids", "znver4", "znver5"},
        "fp16": {"sapphirerapids", "neoverse-n1", "apple-m1"},
        "dotprod": {"neoverse-n1", "apple-m1"},
    }
    assert not preset("haswell").extensions


def test_extensions_are_detected_one_by_one() -> None:
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("these are x86 features")
    features = dict.fromkeys(("avx512vnni", "amx-tile", "avxvnni"), True)
    assert _extensions(features) == ("avx_vnni", "vnni")
    assert _extensions({**features, "amx-int8": True, "avxvnni": False}) == ("amx_int8", "vnni")
    assert _extensions({}) == ()
    here = host.__wrapped__()
    assert ("vnni" in here.extensions) == bool(llvm.get_host_cpu_features().get("avx512vnni"))


def test_tiles_are_used_where_the_kernel_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ("amx_bf16", "amx_int8", "vnni")
    for given, expected in ((True, found), (False, ("vnni",))):
        monkeypatch.setattr("leanconv.codegen.host.may_use_tiles", lambda given=given: given)
        assert _allowed(found) == expected
        assert _allowed(("vnni",)) == ("vnni",)


def test_a_machine_without_an_extension_does_not_run_code_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if host().isa != "avx512":
        pytest.skip("the code is for AVX-512")
    facts = llvm_facts()
    features = facts.features.replace("+avx512vnni", "-avx512vnni")
    without = facts._replace(features=features)
    monkeypatch.setattr("leanconv.codegen.host.llvm_facts", lambda: without)
    check_runs_here(preset("skylake-avx512"))
    with pytest.raises(SpecError, match=r"'znver4' cannot run .*expected haswell, skylake-avx512"):
        check_runs_here(preset("znver4"))


@pytest.mark.parametrize(
    ("features", "runs"),
    [({"neon": True, "dotprod": True}, True), ({"neon": True}, False), ({}, True)],
)
def test_arm_code_with_dot_products_needs_them_where_features_are_listed(
    features: dict[str, bool], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Systems that list none may have any."""
    target = preset("neoverse-n1")
    here = replace(host(), triple=target.triple, isa="neon")
    monkeypatch.setattr("leanconv.codegen.host.host", lambda: here)
    facts = llvm_facts()._replace(features=",".join(f"+{name}" for name in features))
    monkeypatch.setattr("leanconv.codegen.host.llvm_facts", lambda: facts)
    check_runs_here(replace(target, extensions=()))
    with nullcontext() if runs else pytest.raises(SpecError, match="'neoverse-n1' cannot run"):
        check_runs_here(target)


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(SpecError, match=r"'pentium'.*haswell.*neoverse-n1"):
        preset("pentium")


def test_targets_are_values() -> None:
    assert preset("haswell") == replace(preset("znver5"), **vars(preset("haswell")))
    assert len({preset(name) for name in NAMED}) == len(NAMED)
    with pytest.raises(FrozenInstanceError):
        preset("haswell").registers = 32  # type: ignore[misc]


def test_this_machine() -> None:
    assert host() is host()
    here = host.__wrapped__()  # as it is detected, whatever the tests take it for
    assert here.name == host().name == "host"
    assert llvm_facts() == asked()
    assert here.cpu == llvm.get_host_cpu_name()
    assert here.triple == llvm.get_process_triple()
    assert here.triple.startswith(("x86_64", "aarch64", "arm64"))
    if platform.machine() in ("x86_64", "AMD64"):
        features = llvm.get_host_cpu_features()
        assert (here.isa == "avx512") == bool(
            features.get("avx512f") and features.get("avx512vl") and features.get("avx512dq")
        )
    assert here.vector_bytes in (16, 32, 64)
    assert 0 < here.l1_bytes < here.l2_bytes


def test_the_nearest_preset() -> None:
    def found(cpu: str, *features: str) -> Target:
        return _closest_preset(cpu, dict.fromkeys(features, True))

    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("these are x86 processors")
    assert found("znver3", "avx2", "fma").name == "znver3"
    wide = ("avx2", "fma", "avx512f", "avx512vl", "avx512dq", "avx512bw")
    assert found("some-future", *wide).isa == "avx512"
    assert found("some-future", *wide[:3]).isa == "avx2"
    old = found("nehalem", "sse4.2")
    assert (old.isa, old.vector_bytes) == ("generic", 16)


def test_a_named_processor_with_features_switched_off_is_not_believed() -> None:
    """A hypervisor may hide what the processor of that name has."""
    if platform.machine() in ("aarch64", "arm64"):
        pytest.skip("these are x86 processors")
    hidden = {"avx2": True, "fma": True, "avx512f": False}
    assert _closest_preset("skylake-avx512", hidden).isa == "avx2"
    shown = dict.fromkeys((*_NEEDS["avx512"], *_NEEDS["avx2"]), True)
    assert _closest_preset("rocketlake", shown).name == "icelake-server"
    assert _closest_preset("rocketlake", {**shown, "amx-tile": True}).name == "sapphirerapids"
    assert _closest_preset("haswell", {"avx2": False, "fma": False}).isa == "generic"


def test_usable_cores() -> None:
    count = usable_cores()
    assert 1 <= count <= (os.cpu_count() or 1)
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(before)})
            assert usable_cores() == 1
        finally:
            os.sched_setaffinity(0, before)
        assert usable_cores() == count


# -- other systems -----------------------------------------------------------------------------
def test_systems_have_names_and_triples() -> None:
    for name, triples in SYSTEMS.items():
        for cpu, arch in (("haswell", "x86_64"), ("armv8-a", "aarch64")):
            if arch in triples:
                target = on_system(preset(cpu), name)
                assert system_of(target.triple) == name
                assert architecture(target.triple) == arch
                assert replace(target, triple=preset(cpu).triple) == preset(cpu)
    assert system_of(preset("wasm32-simd128").triple) == "wasm"
    assert on_system(preset("haswell"), "x86_64-w64-mingw32").triple == "x86_64-w64-windows-gnu"
    phone = on_system(preset("armv8-a"), "aarch64-linux-android26")
    assert (phone.triple, system_of(phone.triple)) == ("aarch64-unknown-linux-android26", "android")
