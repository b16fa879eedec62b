"""Python's cyclic garbage collector while much is made that stays.

It looks at all young objects after every 700 new ones: an eighth of what imports, reading and
planning take, where hardly any cycle is dropped.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MOST = 50_000  # new objects between two looks: some megabytes, which bounds what cycles hold


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Have the collector look more seldom, unless the process has switched it off or does so.

    There is no count of users and no lock: whoever comes second changes nothing, and whoever
    changed it puts back what was there. At worst it looks as often as ever.
    """
    before = gc.get_threshold()
    seldom = (_MOST, *before[1:])
    if not 0 < before[0] < _MOST:
        yield
        return
    gc.set_threshold(*seldom)
    try:
        yield
    finally:
        if gc.get_threshold() == seldom:  # else somebody else has set it
            gc.set_threshold(*before)
