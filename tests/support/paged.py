"""Arrays that touch a page which nobody may read: whoever reads one element too far, dies.

Unlike the zones of `guarded`, pages notice reads whose values are not used. A vector that is loaded
under a mask, and a prefetch, reach nothing where they do not read.
"""

from __future__ import annotations

import numpy as np

from support.guard_pages import Region


class Paged:
    """A copy of an array between two pages that cannot be read, right beside one of them.

    Attributes:
        array: the copy.
        memory: the pages of the copy, as bytes.
    """

    def __init__(self, array: np.ndarray, at_end: bool) -> None:
        """Copy.

        Args:
            array: what to copy.
            at_end: end where the page behind begins; else begin where the page before ends.
        """
        array = np.ascontiguousarray(array)
        self._region = Region(array.nbytes, at="end" if at_end else "start")
        (self.memory,) = self._region.pages
        self.array = self._region.data.view(array.dtype).reshape(array.shape)
        self.array[...] = array

    @classmethod
    def before_end(cls, array: np.ndarray) -> Paged:
        """A copy that ends where the page behind begins."""
        return cls(array, at_end=True)

    @classmethod
    def after_start(cls, array: np.ndarray) -> Paged:
        """A copy that begins where the page before ends."""
        return cls(array, at_end=False)

    def check(self) -> None:
        """Raise AssertionError if a byte beside the copy, in its own pages, was changed."""
        self._region.check()
