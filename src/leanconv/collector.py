"""Python's cyclic garbage collector while much is made that stays.

It looks at all young objects after every 700 new ones: an eighth of what imports, reading and
planning take, where hardly any cycle is dropped.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 50_000  # new objects between two looks: some megabytes, which bounds what cycles hold
_IMPORTED = 1_000_000  # more than all modules together are made of


@contextmanager
def no_collections() -> Iterator[None]:
    """Have the collector not look at all at new objects in a `with` block, which stay for good.

    For imports: one look at all that they make takes 25 ms. It is put where the collector keeps
    what has stayed for long, and looks at seldom. What a process has frozen stays so.
    """
    with fewer_collections(_IMPORTED):
        yield
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()


@contextmanager
def fewer_collections(most: int = _MOST) -> Iterator[None]:
    """Have the collector look more seldom, unless the process has switched it off or does so.

    There is no count of users and no lock: whoever comes second changes nothing, and whoever
    changed it puts back what was there. At worst it looks as often as ever.
    """
    before = gc.get_threshold()
    seldom = (most, *before[1:])
    if not 0 < before[0] < most:
        yield
        return
    gc.set_threshold(*seldom)
    try:
        yield
    finally:
        if gc.get_threshold() == seldom:  # else somebody else has set it
            gc.set_threshold(*before)
