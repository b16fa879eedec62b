"""Symbols: numbers whose values are known but not built into the code or graph made with them.

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

from leanconv.symbolic.expressions import (
    BeyondBoundsError,
    Expression,
    Expressions,
    Guarded,
    Guards,
    NeedsNumberError,
    Record,
    Values,
    guarded,
)
from leanconv.symbolic.memo import Fill, Holes, Made, Memo, attempted, fixed, tell
from leanconv.symbolic.symbols import (
    Count,
    Counts,
    Extent,
    Extents,
    Mark,
    Scalars,
    Sizes,
    Strides,
    Symbol,
    Trace,
    key,
    least,
    most,
    plain,
    require_numbers,
)

__all__ = [
    "BeyondBoundsError",
    "Count",
    "Counts",
    "Expression",
    "Expressions",
    "Extent",
    "Extents",
    "Fill",
    "Guarded",
    "Guards",
    "Holes",
    "Made",
    "Mark",
    "Memo",
    "NeedsNumberError",
    "Record",
    "Scalars",
    "Sizes",
    "Strides",
    "Symbol",
    "Trace",
    "Values",
    "attempted",
    "fixed",
    "guarded",
    "key",
    "least",
    "most",
    "plain",
    "require_numbers",
    "tell",
]
