"""Records of costs: complete, with a source for each number, and inherited where there is none."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from leanconv.target import PRESETS
from leanconv.target.costs import Costs, numbers

RECORDS = {target.costs.cpu: target.costs for target in PRESETS.values()}


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


def test_only_zen_4_has_a_record_and_the_others_inherit_it() -> None:
    assert {name for name, target in PRESETS.items() if target.has_own_costs} == {"znver4"}
    assert set(RECORDS) == {"znver4"}


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
