"""Symbols: numbers whose values are known but not built into what is made with them.

Code of a kernel and the simplified graph of a network are made with symbols for the extents that
may differ from one use to the next. A symbol is a known number and an expression over variables;
what computes with it computes as with a number, and what it decides is on record:

    rows = ceil_div(height, 8)      another expression
    if height % 8:                  a guard: what is made holds for the same answer only
    range(height)                   a guard: what is made holds for this number only

So what was made, the expressions in it and the guards together serve every other use whose
variables answer the guards alike, and nothing that steered the making can be forgotten. Making is
deterministic: at most one of several things that were made so fits.
"""

from leanconv.symbolic.attempts import attempted, tell
from leanconv.symbolic.evaluation import Evaluated, guarded
from leanconv.symbolic.expressions import (
    BeyondBoundsError,
    Expression,
    Expressions,
    NeedsNumberError,
    Step,
    Values,
    index_within,
    is_bounded_number,
    read_steps,
    steps_of,
)
from leanconv.symbolic.symbols import (
    Scalars,
    Symbol,
    TextError,
    Trace,
    by_numbers,
    key,
    least,
    most,
    plain,
    require_numbers,
)

__all__ = [
    "BeyondBoundsError",
    "Evaluated",
    "Expression",
    "Expressions",
    "NeedsNumberError",
    "Scalars",
    "Step",
    "Symbol",
    "TextError",
    "Trace",
    "Values",
    "attempted",
    "by_numbers",
    "guarded",
    "index_within",
    "is_bounded_number",
    "key",
    "least",
    "most",
    "plain",
    "read_steps",
    "require_numbers",
    "steps_of",
    "tell",
]
