"""Options that plans of one convolution and of networks share, checked."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np

from leanconv.errors import SpecError

_MOST_THREADS = 1024


def checked_dtype(dtype: Any) -> str | None:
    """The name of a dtype that may be given as NumPy has it, such as `np.float64`."""
    name: str | None = np.dtype(dtype).name if isinstance(dtype, type | np.dtype) else dtype
    return name


def checked_threads(threads: Any) -> int | None:
    """Threads that take part, None for the default.

    Raises:
        SpecError: it is no such number.
    """
    if threads is None:
        return None
    try:
        number = 0 if isinstance(threads, bool) else index(threads)
    except TypeError:
        number = 0
    if not 1 <= number <= _MOST_THREADS:
        raise SpecError(f"threads is {threads!r}; expected an integer from 1 to {_MOST_THREADS}")
    return number


def checked_error(max_error: Any) -> float | None:
    """The largest relative error accepted, None for no limit.

    Raises:
        SpecError: it is no positive number.
    """
    if max_error is None:
        return None
    number = isinstance(max_error, float | int | np.floating) and not isinstance(max_error, bool)
    if not number or not max_error > 0:
        raise SpecError(f"max_error is {max_error!r}; expected a positive number, such as 1e-5")
    return float(max_error)


def checked_algorithms(algorithms: Any) -> dict[str, str]:
    """Algorithms by the names of layers.

    Raises:
        SpecError: it is no dictionary of texts.
    """
    if algorithms is None:
        return {}
    if not isinstance(algorithms, Mapping) or not all(
        isinstance(text, str) for pair in algorithms.items() for text in pair
    ):
        raise SpecError(
            f"algorithms is {algorithms!r}; expected texts by the names of layers, such as "
            "{'conv1': 'winograd'}"
        )
    return dict(algorithms)
