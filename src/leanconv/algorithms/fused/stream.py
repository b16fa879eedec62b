"""Several blocks one after the other in a single pass over rows: none but the last is stored.

    for the chunk (an image, some rows of the last block's output):
        for a step of these rows, and for some steps before the first one:
            for each block, the first one first: the rows that the next one needs for this step
                and that are not there yet

Between two blocks stand rings of rows in the thread's scratch. The steps before the first fill the
rings little by little, so that these need not hold all that the first rows of a chunk reach; a
chunk that follows the one before in the same thread finds them filled.
"""

from __future__ import annotations

from collections.abc import Sequence

from leanconv.algorithms.fused.block import BlockKernels
from leanconv.algorithms.fused.kernel import Constants, pack_part
from leanconv.algorithms.fused.rows import BlockRows, Rows, no_rows
from leanconv.codegen.emitter import Carry, Function, Pointer, Value
from leanconv.codegen.kernel import Kernel
from leanconv.codegen.lowered import PackCall
from leanconv.records import dataclass, replace
from leanconv.spec.format import aligned, ceil_div
from leanconv.symbolic import Extent
from leanconv.target import Target


@dataclass(frozen=True)
class BlockStream(Kernel):
    """The code of some blocks.

    Attributes:
        batch: images.
        blocks: their kernels; the first reads x, and all but the last write rings.
        rings: rows that are kept between two blocks, one number for each but the last.
        step: rows of the last block's output of a step, which is a chunk.
        warm: steps before the first one of a chunk that follows no other.
    """

    VARIES = True
    wants_consecutive_chunks = True  # the rings stay filled from one strip to the next

    batch: Extent
    blocks: tuple[BlockKernels, ...]
    rings: tuple[int, ...]
    step: int
    warm: int

    @property
    def operands(self) -> tuple[str, ...]:
        """Input, what each block's stages read, output."""
        names = [f"{i}.{name}" for i, block in enumerate(self.blocks) for name in block.operands]
        return ("x", *names, "y")

    @property
    def row_count(self) -> int:
        """Output rows of an image."""
        return self.blocks[-1].depthwise.conv.row_count

    @property
    def strips(self) -> int:
        """Chunks of an image."""
        return ceil_div(self.row_count, self.step)

    @property
    def chunks(self) -> int:
        """Images by strips."""
        return self.batch * self.strips

    @property
    def ring_bytes(self) -> tuple[int, ...]:
        """Bytes of each ring."""
        sizes = []
        for block, ring in zip(self.blocks, self.rings, strict=False):
            project, item = block.projects[0], block.projects[0].conv.precision.y.bytes
            channels = sum(p.conv.outputs for p in block.projects)
            blocks = ceil_div(channels, project.conv.y.block)
            assert project.conv.y.block_stride == ring * project.conv.y.spatial[1]
            sizes.append(aligned(blocks * project.conv.y.block_stride * item))
        return tuple(sizes)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the rings, and of the largest block's scratch."""
        return sum(self.ring_bytes) + max(block.scratch_bytes for block in self.blocks)

    @property
    def flops(self) -> int:
        """Operations of the plain sums: rows that are computed twice count once."""
        return self.batch * sum(block.image_flops for block in self.blocks)

    def pack_calls(self, constants: Sequence[Sequence[Constants]]) -> dict[str, list[PackCall]]:
        """Return the calls that pack the constants of all blocks' convolutions, by operand."""
        return {
            f"{i}.{name}": calls
            for i, block in enumerate(self.blocks)
            for name, calls in pack_part(block, constants[i]).items()
        }

    @property
    def constant_bytes(self) -> dict[str, int]:
        """Bytes of the constants of all blocks, by operand."""
        return {
            f"{i}.{name}": size
            for i, block in enumerate(self.blocks)
            for name, size in block.constant_bytes.items()
        }

    def emit(self, target: Target) -> str:
        """Emit the loops: chunks, steps, blocks."""
        e = Function(self.NAME)
        pointers = self._pointers(e)
        # For each block, the first row of its output that is not there yet.
        done: Carry = [e.i64(0) for _ in self.blocks]
        with e.loop("chunk", e.hi, [done], start=e.lo) as chunk:
            strip, image = chunk % self.strips, chunk // self.strips
            rows = self._blocks(e, pointers, image)
            first = strip * self.step
            begins = strip.compare("eq", 0) | chunk.compare("eq", e.lo)
            self._begin(e, begins, first, done)
            start = e.select(begins, e.i64(0), e.i64(self.warm))
            with e.loop("step", self.warm + 1, [done], start=start) as step:
                last = first + (step - (self.warm - 1)) * self.step
                self._step(e, rows, e.smin(last, self.row_count), done)
        return e.finish()

    def _pointers(self, e: Function) -> dict[str, Pointer]:
        types = {
            f"{i}.{name}": kind
            for i, block in enumerate(self.blocks)
            for name, kind in block.operand_types.items()
        }
        x, y = types["0.x"], types[f"{len(self.blocks) - 1}.y"]
        return e.pointers(self.operands, y, x=x, y=y, **types)

    def _begin(self, e: Function, begins: Value, first: Value, done: Carry) -> None:
        """Let a chunk that follows no other start with the first row that each block needs."""
        for i in reversed(range(len(self.blocks))):
            done[i] = e.select(begins, first, done[i])
            stride = self.blocks[i].depthwise.conv.window.stride[1]
            first = e.smax(first * stride - self.blocks[i].row_pad, 0)

    def _step(self, e: Function, rows: Sequence[BlockRows], last: Value, done: Carry) -> None:
        """Emit each block's rows for the output rows before `last`, which may be none."""
        stops: list[Value] = []
        for block in reversed(self.blocks):
            stops.insert(0, last)
            stride = block.depthwise.conv.window.stride[1]
            reached = (last - 1) * stride + (block.input_rows - block.row_pad)
            last = e.smin(reached, block.height)
        for i, (each, stop) in enumerate(zip(rows, stops, strict=True)):
            with e.when(done[i].compare("slt", stop)):
                # Another block has used the scratch since: expanded rows are made anew.
                each.emit(
                    done[i], stop, no_rows(e, each.block) if each.block.keeps_expanded else []
                )
            done[i] = e.smax(done[i], stop)

    def _blocks(self, e: Function, pointers: dict[str, Pointer], image: Value) -> list[BlockRows]:
        scratch = e.scratch.at(sum(self.ring_bytes))
        x, place, made = Rows(pointers["x"], 0, 0), 0, []
        for i, block in enumerate(self.blocks):
            if i < len(self.rings):
                stride = block.projects[0].conv.y.spatial[1]
                y = Rows(e.scratch.at(place).of(block.operand_types["y"]), self.rings[i], stride)
                place += self.ring_bytes[i]
            else:
                y = Rows(pointers["y"], 0, 0)
            own = {name: pointers[f"{i}.{name}"] for name in block.operands}
            tensors = {"x": x, "y": y}
            if block.has_residual:
                # The kernel goes to the residual's image and block as if it lay like y.
                given, made_y = (block.expand or block.depthwise).conv.x, block.projects[0].conv.y
                assert given.block == made_y.block, "a residual in another format than the result"
                start = x.start.at(image * (given.image - made_y.image))
                block_gap = given.block_stride - made_y.block_stride
                tensors["residual"] = replace(x, start=start, block_gap=block_gap)
            made.append(BlockRows(e, block, own, tensors, scratch, image, image))
            x = y
        return made


BlockShape = tuple[int, int, int, int, int]  # rows expanded, of the output, stride, padding, reach


def ring_rows(blocks: Sequence[BlockShape], step: int, warm: int) -> list[int]:
    """Rows that must be kept between blocks, by going through all chunks.

    Between the ends of an image each chunk needs what the one before it did: of a higher image
    than it takes to see that, some of the middle is left out.

    Args:
        blocks: expanded rows, rows of the output, stride, padding and reach of each block.
        step, warm: as of `BlockStream`.
    """
    blocks = _without_middle(blocks, step, warm)
    needed = [1] * (len(blocks) - 1)
    count = blocks[-1][1]
    for first in range(0, count, step):
        done, low = [0] * len(blocks), first
        for i in reversed(range(len(blocks))):
            done[i] = low
            low = max(0, low * blocks[i][2] - blocks[i][3])
        # A chunk that begins, and some of those that follow it: from the first one all.
        end = count + step if not first else first + 3 * step
        for last in range(first - (warm - 1) * step, end, step):
            stops, stop = [0] * len(blocks), min(last, count)
            for i in reversed(range(len(blocks))):
                stops[i] = stop
                height, _, stride, pad, reach = blocks[i]
                stop = min((stop - 1) * stride - pad + reach, height)
            for i, stop in enumerate(stops):
                if done[i] < stop:
                    if i:
                        low = max(0, done[i] * blocks[i][2] - blocks[i][3])
                        needed[i - 1] = max(needed[i - 1], done[i - 1] - low)
                    done[i] = stop
    return needed


def _without_middle(blocks: Sequence[BlockShape], step: int, warm: int) -> list[BlockShape]:
    """The same blocks over a lower image, of as many more or fewer rows than whole steps."""
    seen = sum(reach + pad for _, _, _, pad, reach in blocks)
    steps = 2 * (ceil_div(seen, step) + len(blocks) + warm + 4)
    skipped = max(0, blocks[-1][1] // step - steps) * step  # rows of the last block's output
    shorter: list[BlockShape] = []
    for height, out, stride, pad, reach in reversed(blocks):
        shorter.insert(0, (height - skipped * stride, out - skipped, stride, pad, reach))
        skipped *= stride
    return shorter
