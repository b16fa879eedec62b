"""Which operations the lists of cases of single nodes hold."""

from __future__ import annotations

from support import (
    attention_cases,
    composed_cases,
    elementwise_cases,
    reduction_cases,
    signal_cases,
)

_LISTS = (attention_cases, composed_cases, elementwise_cases, reduction_cases, signal_cases)
TESTED = {op for each in _LISTS for op in each.TESTED}
TESTED |= {"CausalConvWithState", "LinearAttention"}  # in test_import_states
