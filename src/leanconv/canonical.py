"""Values as canonical text, to be a key or to be hashed into one.

`repr` must not be a key: that of a dataclass guards itself against endless nesting by a set of the
objects under way, and a KeyboardInterrupt at the wrong moment leaves an object in it for ever: its
`repr` is "..." from then on. Different kernels would then share one key.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping


@functools.cache
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Names of the fields that a dataclass compares, None for another type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


def canonical_text(value: object) -> str:
    """Return a value as text: dataclasses and collections by their parts, all else by `repr`.

    Args:
        value: plain values, tuples, lists, mappings and dataclasses of such, nested at will.

    Returns:
        Text that is equal for equal values and differs where a part differs.
    """
    kind: type = type(value)
    names = _field_names(kind)
    if names is not None:
        parts = [f"{name}={canonical_text(getattr(value, name))}" for name in names]
    elif isinstance(value, (tuple, list)):
        parts = [canonical_text(part) for part in value]
    elif isinstance(value, Mapping):
        parts = [f"{canonical_text(key)}: {canonical_text(part)}" for key, part in value.items()]
    else:
        return repr(value)
    return f"{kind.__qualname__}({', '.join(parts)})"
