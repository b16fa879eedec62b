"""Extents: numbers of a kernel that its code reads from the argument table instead of naming them.

A kernel's fields annotated `Extent`, `Extents`, `Count`, `Counts`, `Sizes`, `Strides` (sizes of
images, batches, strides between rows, planes and images) or `Scalars` (factors) are replaced by
symbols before it emits its code. A symbol is a known number and an expression over those fields;
the generator computes with it as with a number:

    panels = ceil_div(self.outputs, 32)      another expression
    e.loop("panel", panels)                  a word: the code loads its bound at entry
    if self.outputs % 32:                    a guard: the code holds for the same answer only
    range(self.outputs)                      a guard: the code holds for this number only

So whatever shaped the code is on record, and a kernel cannot forget any: the text of the code, the
expressions of its words and the guards are the kernel's form (`forms`). Kernels of the same class,
equal in all other fields, whose extents answer the guards alike, are computed by the same machine
code, each with words of its own.

Extents 0 and 1 stay numbers, for what they leave out of the code is worth a form of its own, unless
the annotation is `Count` or `Counts`.
The variables of its expressions are the kernel's extents, in order.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from leanconv.symbolic import Mark, Scalars

__all__ = ["Count", "Counts", "Extent", "Extents", "Scalars", "Sizes", "Strides"]

# In annotations of a kernel's fields, and of the records that these are made of.
Extent: TypeAlias = Annotated[int, Mark.EXTENT]
Extents: TypeAlias = Annotated[tuple[int, ...], Mark.EXTENT]
# Numbers of rows in a chunk, of bands …: 0 and 1, too, are symbols.
Count: TypeAlias = Annotated[int, Mark.COUNT]
Counts: TypeAlias = Annotated[tuple[int, ...], Mark.COUNT]
# Along depth, height and width.
Sizes: TypeAlias = Annotated[tuple[int, int, int], Mark.EXTENT]
# The last one, of columns, is a plain number: it is form.
Strides: TypeAlias = Annotated[tuple[int, int, int], Mark.STRIDES]
