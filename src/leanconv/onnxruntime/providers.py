"""Providers: onnxruntime's word for what runs a network. Ours goes by the name of the CPU's."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from leanconv.errors import short
from leanconv.onnxruntime.exceptions import InvalidArgument

CPU = "CPUExecutionProvider"


def get_available_providers() -> list[str]:
    """Names of providers that sessions can have."""
    return [CPU]


def get_all_providers() -> list[str]:
    """Names of providers that sessions can have; leanconv knows no others."""
    return [CPU]


def chosen(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    options: Sequence[Mapping[str, Any]] | None,
) -> dict[str, dict[str, Any]]:
    """The providers of a session with their options, in order.

    Args:
        providers: names, or names with options; None for all that there are. Those that leanconv
            lacks are left out with a warning, as onnxruntime does.
        options: of each provider, where they do not stand beside the names.

    Raises:
        InvalidArgument: they are no names, or are not as many as the options.
    """
    given = list(providers) if providers else [CPU]
    if options and len(options) != len(given):
        raise InvalidArgument.of(
            f"got {len(options)} provider_options for {len(given)} providers; expected one each"
        )
    result: dict[str, dict[str, Any]] = {}
    for number, each in enumerate(given):
        name, own = each if isinstance(each, tuple) and len(each) == 2 else (each, {})
        if not isinstance(name, str):
            raise InvalidArgument.of(
                f"provider {short(each)} is {type(each).__name__}; expected a name, or a name "
                "with a dictionary"
            )
        if name != CPU:
            warnings.warn(
                f"Specified provider {name!r} is not in available provider names. Available "
                f"providers: {CPU!r}",
                stacklevel=3,
            )
            continue
        result[name] = {**own, **(options[number] if options else {})}
    return result or {CPU: {}}
