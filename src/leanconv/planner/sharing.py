"""What sizes of a network share, what they do not, and why: a report of memos and their guards."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from leanconv.codegen.forms import extent_names, forms_of_skeleton, instance_of, split
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.linking import lock
from leanconv.graph.template import Template, Templates
from leanconv.planner.found_plans import RangePlan
from leanconv.records import dataclass
from leanconv.symbolic import Memo
from leanconv.target import Target
from leanconv.units import counted


@dataclass(frozen=True)
class Shared:
    """Something that is made once for all sizes that answer its guards alike.

    Attributes:
        level: `"graph"`, `"choice"`, `"search"`, `"layer"` or `"kernel"`.
        name: which one.
        kept: how many were made, for sizes that answer in different ways; forms of kernels.
        served: how often one of them served a later size; of kernels, how many there are.
        guards: how many questions about sizes were asked while they were made.
        parted_by: the guards that some of them have and others have not, or answer otherwise.
        refusals: why others are made for each size by itself.
    """

    level: str
    name: str
    kept: int
    served: int
    guards: int
    parted_by: Sequence[str]
    refusals: Sequence[str]


def what_is_shared(
    templates: Iterable[Templates], kernels: Iterable[Kernel], target: Target
) -> list[Shared]:
    """What was shared by the sizes that a network has met.

    Args:
        templates: its graphs.
        kernels: of the plans for these sizes; those whose form is not known are emitted.
        target: what they are emitted for.
    """
    memos = [memo for each in templates for memo in each.memos]
    rows = [_row("graph", f"for open {', '.join(memo.names)}", memo, memo.names) for memo in memos]
    for memo in memos:
        for entry in memo.entries:
            assert isinstance(entry, Template)
            rows += _of_template(entry, memo.names)
    return [*rows, *_of_kernels(kernels, target)]


def _row(level: str, name: str, memo: Memo[Any], names: Sequence[str]) -> Shared:
    guards = [entry.numbers.texts(names) for entry in memo.entries]
    asked = sum(map(len, guards))
    return Shared(level, name, len(guards), memo.uses, asked, _parting(guards), memo.refusals)


def _parting(guards: Sequence[Sequence[str]]) -> list[str]:
    """The guards that some have and others have not, or answer otherwise."""
    texts = dict.fromkeys(guard for each in guards for guard in each)
    found = [guard for guard in texts if not all(guard in each for each in guards)]
    return list(dict.fromkeys(guard.removeprefix("not ") for guard in found))


def _of_template(template: Template, extents: Sequence[str]) -> Iterator[Shared]:
    """What was chosen and lowered for the graphs that were filled in from a template."""
    names = template.numbers.result_texts(extents)
    for key, held in template.memo.items():
        if isinstance(held, Memo):
            yield _row("choice", key if isinstance(key, str) else str(key[0]), held, names)
        elif isinstance(held, RangePlan):
            yield _of_search(held, extents)
        elif isinstance(held, dict):
            lowered = ((each, memo) for each, memo in held.items() if isinstance(memo, Memo))
            for (position, *_), memo in lowered:
                node = template.result.nodes[position]
                if memo.entries or memo.refusals:  # else only one size has come so far
                    yield _row("layer", f"{node.op} {node.name or node.key}", memo, names)


def _of_search(found: RangePlan, extents: Sequence[str]) -> Shared:
    """What was searched for the size that stands for a range."""
    size = ", ".join(
        f"{name} {extent}" for name, extent in zip(extents, found.extents, strict=True)
    )
    refusals = []
    if not found.decisions:
        refusals.append("each size is searched by itself: the network has no plan for this one")
    elif found.unserved:
        refusals.append(f"{counted(found.unserved, 'size')} searched alone: other guards or errors")
    return Shared("search", size, bool(found.decisions), found.served, 0, (), refusals)


def _of_kernels(kernels: Iterable[Kernel], target: Target) -> Iterator[Shared]:
    """A row for all kernels that differ in sizes alone, and one for a class that never shares."""
    alike: dict[tuple[str, Hashable], dict[Kernel, None]] = {}
    for kernel in kernels:
        key = type(kernel).__name__, split(kernel)[0] if kernel.VARIES else None
        alike.setdefault(key, {})[kernel] = None
    for (name, skeleton), found in alike.items():
        with lock:
            digests = {instance_of(kernel, target).digest for kernel in found}
        guards, refusals = list[Sequence[str]](), list[str]()
        if skeleton is None:
            refusals.append(f"{len(found)} have all numbers in their code")
        else:
            kernel = next(iter(found))
            forms = [f for f in forms_of_skeleton(kernel, target) if f.digest in digests]
            guards = [form.numbers.texts(extent_names(kernel)) for form in forms]
        asked = sum(map(len, guards))
        yield Shared("kernel", name, len(digests), len(found), asked, _parting(guards), refusals)
