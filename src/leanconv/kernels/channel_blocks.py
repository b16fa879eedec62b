"""Blocks of channels that come from anywhere: which of them are alike but for their place."""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.kernels.index_runs import IndexRun
from leanconv.records import dataclass, replace

ChannelRun = tuple[int, IndexRun]  # an operand, and its channels in their order in the result
Channel = tuple[int, int] | None  # operand and channel in it; None is filled


@dataclass(frozen=True)
class ChannelBlocks:
    """Result blocks `first … first + count - 1`, which gather the same lanes.

    Attributes:
        first, count: which result blocks.
        operands: the source of each term.
        sources, steps: of each term, the block that the first result block reads, and how far the
            next one's is.
        picks: of each term and result lane, the source lane or -1; empty if blocks stay whole.
    """

    first: int
    count: int
    operands: tuple[int, ...]
    sources: tuple[int, ...]
    steps: tuple[int, ...]
    picks: tuple[tuple[int, ...], ...]


def _block_terms(channels: Sequence[Channel], block: int) -> ChannelBlocks:
    """What one result block gathers."""
    terms: dict[tuple[int, int], list[int]] = {}
    for lane, channel in enumerate(channels):
        if channel is not None:
            operand, c = channel
            terms.setdefault((operand, c // block), [-1] * block)[lane] = c % block
    picks = tuple(tuple(lanes) for lanes in terms.values())
    stays = len(terms) == 1 and all(p in (-1, i) for i, p in enumerate(picks[0]))
    if stays and None not in channels:
        picks = ()
    operands, sources = tuple(o for o, _ in terms), tuple(b for _, b in terms)
    return ChannelBlocks(0, 1, operands, sources, (0,) * len(terms), picks)


def channel_blocks(channels: Sequence[ChannelRun], block: int) -> list[ChannelBlocks]:
    """Group the blocks of a result whose channels come from anywhere.

    Blocks inside a run differ in their place only: they are looked at no further than it takes to
    see how far apart they are.
    """
    groups: list[ChannelBlocks] = []
    expanded: list[Channel] = []  # of the block that is not whole yet
    for operand, run in channels:
        done = 0
        while done < run.count:
            taken = min(run.count - done, block - len(expanded))
            expanded += _expanded(operand, run, done, taken)
            done += taken
            if len(expanded) == block:
                _add(groups, expanded, block)
                expanded = []
                inside = (run.count - done) // block
                if done >= 3 * block and inside:  # the last two blocks were inside the run
                    groups[-1] = replace(groups[-1], count=groups[-1].count + inside)
                    done += inside * block
    if expanded:
        _add(groups, expanded, block)
    return groups


def _expanded(operand: int, run: IndexRun, first: int, count: int) -> list[Channel]:
    if run.source < 0:
        return [None] * count
    return [(operand, run.source + i * run.step) for i in range(first, first + count)]


def _add(groups: list[ChannelBlocks], channels: Sequence[Channel], block: int) -> None:
    """Lengthen the last group by a block, or begin another one."""
    new = _block_terms(channels, block)
    last = groups[-1] if groups else None
    if last is not None and (last.operands, last.picks) == (new.operands, new.picks):
        steps = last.steps
        if last.count == 1:
            steps = tuple(b - a for a, b in zip(last.sources, new.sources, strict=True))
        reached = (a + last.count * s for a, s in zip(last.sources, steps, strict=True))
        if tuple(reached) == new.sources:
            groups[-1] = replace(last, count=last.count + 1, steps=steps)
            return
    first = last.first + last.count if last else 0
    groups.append(replace(new, first=first))
