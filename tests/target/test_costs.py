"""Records of costs: complete, with a source for each number, and inherited where there is none."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import date

import pytest

from leanconv.target import PRESETS, RELATIVES, Target
from leanconv.target.costs import Costs, derived, numbers, stated
from leanconv.target.rates import Rates, calibrated, rates_of
from leanconv.types import FLOAT32

RECORDS = {costs.cpu: costs for costs in (target.costs for target in PRESETS.values())}


@pytest.mark.parametrize("costs", RECORDS.values(), ids=RECORDS)
def test_every_number_has_one_source_with_date_machine_and_way(costs: Costs) -> None:
    named = [name for source in costs.sources for name in source.names]
    assert sorted(named) == sorted(numbers(costs))
    for source in costs.sources:
        assert date.fromisoformat(source.date) >= date(2026, 11, 20)
        assert source.machine
        assert source.how


@pytest.mark.parametrize("costs", RECORDS.values(), ids=RECORDS)
def test_numbers_agree_with_each_other(costs: Costs) -> None:
    assert costs.l2_read >= costs.l3_read >= costs.l3_read_crowded >= costs.dram_read > 0
    assert costs.l3_read >= costs.l3_read_unprefetched
    assert 0 < costs.l3_share < costs.l3_crowded_share <= 1
    assert costs.strided_line >= costs.prefetched_line
    assert 0 <= costs.overlap_loss < 1
    assert list(costs.deinterleave) == sorted(costs.deinterleave)


def test_every_preset_has_a_record_of_its_own() -> None:
    assert all(target.has_own_costs for target in PRESETS.values())
    assert set(RECORDS) == set(PRESETS)
    assert set(RELATIVES.values()) <= set(PRESETS)
    assert not set(RELATIVES) & set(PRESETS)


def test_what_nobody_measured_says_so() -> None:
    how = {
        name: source.how
        for name in ("neoverse-n1", "haswell")
        for source in RECORDS[name].sources
        if source.machine == "any"
    }
    assert how
    assert all(text.startswith(("data sheet, not", "estimate, not")) for text in how.values())


def test_a_derived_record_names_the_source_of_each_number_once() -> None:
    base = RECORDS["znver4"]
    costs = derived("other", base, stated("a book", tlb_pages=7, l2_copy=1.5))
    assert (costs.tlb_pages, costs.l2_copy, costs.l3_read) == (7, 1.5, base.l3_read)
    assert [s.how for s in costs.sources if "tlb_pages" in s.names] == [
        "data sheet, not measured: a book"
    ]


# -- records of processors that nobody knows ---------------------------------------------------
MEASURED = Rates(23.0, 9.3, 7.1, 12 * 2**20, 1.9, 4, undisturbed=True)


def test_rates_are_rounded_to_classes() -> None:
    rounded = MEASURED.rounded()
    assert rounded == Rates(24.0, 10.0, 6.0, 16 * 2**20, 2.0, 4, undisturbed=True)
    assert rounded.rounded() == rounded
    assert rates_of(asdict(rounded)) == rounded
    with pytest.raises(ValueError, match="expected classes"):
        rates_of(asdict(MEASURED))


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("rates", [MEASURED, Rates(90.0, 80.0, 70.0, 2**30, 9, 9), Rates(1, 1, 1)])
def test_a_calibrated_record_agrees_with_itself(name: str, rates: Rates) -> None:
    unknown = replace(PRESETS[name], cpu="unheard-of", l3_bytes=260 * 2**20)
    target = calibrated(unknown, rates.rounded(), "2026-11-23")
    assert target.costs.cpu == "unheard-of, measured"
    assert target.costs_text == "times by rates measured on this machine"
    test_numbers_agree_with_each_other(target.costs)
    named = [name for source in target.costs.sources for name in source.names]
    assert sorted(named) == sorted(numbers(target.costs))
    if rates.l3_bytes:
        assert target.l3_bytes <= 64 * 2**20


def test_what_could_not_be_measured_stays() -> None:
    unknown = replace(PRESETS["haswell"], cpu="unheard-of")
    assert calibrated(unknown, Rates(), "2026-11-23") == unknown


def test_equal_records_are_equal_keys() -> None:
    costs = PRESETS["znver4"].costs
    assert replace(costs) == costs
    assert hash(replace(costs)) == hash(costs)
    other = replace(costs, l3_read=10.5)
    assert other != costs
    assert len({replace(PRESETS["znver4"], costs=each) for each in (costs, other)}) == 2


def test_streams_beyond_l2_are_read_at_the_rate_of_the_level_that_holds_them() -> None:
    costs, l3 = PRESETS["znver4"].costs, 32 * 2**20
    sizes = (l3 // 2, l3 // 2 + 1, l3)
    rates = [costs.l3_or_dram_read(size, l3) for size in sizes]
    assert rates == [costs.l3_read, costs.l3_read_crowded, costs.dram_read]
    assert costs.l3_or_dram_read(2**20, 0) == costs.l3_read


@pytest.mark.parametrize("target", PRESETS.values(), ids=PRESETS)
def test_rates_of_dot_products_agree_with_the_instructions(target: Target) -> None:
    costs = target.costs
    assert costs.u8s8_products is not None
    assert costs.s16_products is not None
    single = target.fma_units * target.lanes(FLOAT32)
    if "vnni" in target.extensions:
        assert (costs.u8s8_products, costs.s16_products) == (4 * single, 2 * single)
    else:  # bytes are widened, and pairs of int16 multiplied
        assert costs.u8s8_products <= costs.s16_products <= 2 * single
    assert (costs.f16_products is not None) == ("fp16" in target.extensions)
    assert (costs.bf16_products is not None) == ("bf16" in target.extensions)


def test_a_host_is_not_believed_about_more_l3_than_one_core_finds() -> None:
    costs = PRESETS["znver4"].costs
    assert costs.l3_found(260 * 2**20) == 260 * 2**20
    assert replace(costs, l3_most_bytes=32 * 2**20).l3_found(260 * 2**20) == 32 * 2**20
    assert replace(costs, l3_most_bytes=32 * 2**20).l3_found(8 * 2**20) == 8 * 2**20


def test_facts_of_targets_are_named() -> None:
    assert [name for name, target in PRESETS.items() if target.splits_vectors] == ["znver4"]
    half = PRESETS["znver4"].with_half_vectors()
    assert (half.vector_bytes, half.fma_units, half.splits_vectors) == (32, 2, False)
    folding = {target.isa for target in PRESETS.values() if target.folds_broadcast}
    masking = {target.isa for target in PRESETS.values() if target.runtime_masks}
    assert (folding, masking) == ({"avx512"}, {"avx512", "avx2"})
    by_lane = {target.isa for target in PRESETS.values() if target.multiplies_by_lane}
    assert by_lane == {"neon"}
