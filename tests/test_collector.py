"""The garbage collector looks more seldom while much is made, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from leanconv.collector import fewer_collections, no_collections


@pytest.fixture(autouse=True)
def usual_thresholds() -> Iterator[None]:
    """As Python starts, whatever the tests themselves run with."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_thresholds_come_back() -> None:
    before = gc.get_threshold()
    with fewer_collections():
        assert gc.get_threshold()[0] > before[0]
        with fewer_collections():  # another thread's, say
            assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


def test_thresholds_come_back_after_an_exception() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), fewer_collections():
        raise KeyError
    assert gc.get_threshold() == before


@pytest.mark.parametrize("own", [(0, 10, 10), (100_000, 5, 5)])
def test_what_a_process_has_set_stays(own: tuple[int, int, int]) -> None:
    before = gc.get_threshold()
    gc.set_threshold(*own)
    try:
        with fewer_collections():
            assert gc.get_threshold() == own
        with fewer_collections():
            gc.set_threshold(*before)
        assert gc.get_threshold() == before
    finally:
        gc.set_threshold(*before)


def test_imports_are_not_looked_at_and_nothing_stays_frozen() -> None:
    looks: list[str] = []
    frozen = gc.get_freeze_count()
    gc.callbacks.append(lambda phase, _: looks.append(phase))
    try:
        with no_collections():
            made = [[each] for each in range(60_000)]
            assert not looks
    finally:
        gc.callbacks.pop()
    assert len(made) == 60_000
    assert gc.get_freeze_count() == frozen
