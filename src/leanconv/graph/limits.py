"""How much of this machine a model file may use before it is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds for reading a file that nobody has checked.

    Attributes:
        file_bytes: the largest model file, without external data (protobuf's own bound).
        fields: protobuf fields read in all; one takes at most a few hundred bytes of memory.
        nodes: the most nodes of a network.
        metadata: the most key-value pairs that a file may say about itself.
        metadata_bytes: the most bytes that these may take together.
        fold_bytes: traffic of computing constants at load, whatever the model's size.
        fold_factor: additional traffic for each byte of the model.
    """

    file_bytes: int = (2 << 30) - 1
    fields: int = 1_000_000
    nodes: int = 100_000
    metadata: int = 10_000
    metadata_bytes: int = 16 << 20
    fold_bytes: int = 64 << 20
    fold_factor: int = 8

    def fold_budget(self, model_bytes: int) -> int:
        """Bytes that computing constants may read and write for a model of so many bytes."""
        return self.fold_bytes + self.fold_factor * model_bytes
