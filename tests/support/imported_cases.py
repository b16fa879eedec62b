"""Which operations the lists of cases of single nodes hold."""

from __future__ import annotations

from support import composed_cases, elementwise_cases, reduction_cases

TESTED = composed_cases.TESTED | elementwise_cases.TESTED | reduction_cases.TESTED
