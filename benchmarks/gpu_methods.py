"""The documents' methods on a GPU, what unfolds or transforms apart from the product; for `gpu.py`.

Like is compared with like: a method in fused multiply-adds with cuBLAS in strict float32, and every
method of ours with the same product under it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from gpu_layers import Layers
from gpu_page import CUBLAS, Row
from gpu_supervisor import said
from leanconv.reference.layers import layer
from leanconv.spec import ConvSpec

# Algorithm and arithmetic: fused multiply-adds as the documents have them, and the fastest.
METHODS: tuple[tuple[str, str | None], ...] = (
    ("direct", "ieee"),
    ("im2col", "ieee"),
    ("mec", "ieee"),
    ("im2win", "ieee"),
    ("im2win:form=high", "ieee"),
    ("im2win:form=basic", "ieee"),
    ("winograd:m=2", "ieee"),
    ("winograd:m=4", "ieee"),
    ("fft", "ieee"),
    ("im2col", None),
    ("mec", None),
    ("im2win", None),
    ("winograd:m=2", None),
)
ABLATION = (
    "im2win:form=high",
    "im2win:prefetch=0",
    "im2win:double=0",
    "im2win:vector=0",
    "im2win:micro=0",
    "im2win:form=basic",
)
PRODUCTS = ("gemm.segment_gemm", "gemm.add_splits", "patches.patch_gemm", "pointwise.sliced_gemm")
_MOST_SPECTRA = 300e6  # bytes of the weights' transforms, which the host makes


class Methods(Layers):
    """Each method of the documents on each layer, batch 128."""

    def methods(self, name: str) -> Iterator[Row]:
        """All methods on one layer, then torch's unfold and matmul, each part of them."""
        spec = replace(layer(name, 128), layout="NHWC")
        self.torch.backends.cuda.matmul.allow_tf32 = False
        self.torch.cuda.empty_cache()
        x = self.torch.randn(spec.input_shape, device=self.device)
        w = self.torch.randn(spec.weight_shape, device=self.device) / spec.reduction**0.5
        for algorithm, precision in METHODS:
            row: Row = {"layer": name, "method": algorithm, "arithmetic": precision or "fastest"}
            if algorithm == "fft" and _spectra(spec) > _MOST_SPECTRA:
                row["skipped"] = f"the weights' spectra take {_spectra(spec):.2g} bytes"
            else:
                self._method(spec, x, w, row, precision)
            yield row
        yield self._blas(spec, x, w, {"layer": name, "method": CUBLAS})

    def _method(self, spec: ConvSpec, x: Any, w: Any, row: Row, precision: str | None) -> None:
        """One method: as a whole, and the product apart from what comes before and behind it."""
        try:
            plan = self.plan(spec, w, algorithm=row["method"], precision=precision)
            held = self.ours(x)
            y = plan(held)
            self.torch.cuda.synchronize()
            if row["method"] == "fft":
                row["ms"] = self.milliseconds(lambda: plan(x))
                row |= self._transforms(plan, x)
            else:
                row["ms"] = self.milliseconds(plan.start)
                parts = {"product_ms": 0.0, "lowering_ms": 0.0}
                for launch, run in plan.parts:
                    product = launch.code.function in PRODUCTS
                    parts["product_ms" if product else "lowering_ms"] += self.milliseconds(run)
                row |= parts
            row["error"] = self.error(spec, x, w, self.torch.from_dlpack(y))
            row["extra_bytes"] = plan.memory_bytes - spec.weight_bytes
            row["plan"] = f"{plan.arithmetic} {plan.parameters}"
        except Exception as error:
            row["refused" if "cannot compute" in str(error) else "failure"] = said(error)

    def _transforms(self, plan: Any, x: Any) -> Row:
        """The parts of `fft`: transforms forward and back, and the product of spectra."""
        library, size, spec = plan._library, plan.size, plan.spec
        spectrum = library.forward(x, size)
        batches = spectrum.reshape(spec.batch, -1, spec.in_channels).permute(1, 0, 2)
        product = library.multiply(batches, plan._spectra).permute(1, 0, 2)
        there = product.reshape(spec.batch, *spectrum.shape[1:-1], spec.out_channels)
        return {
            "lowering_ms": self.milliseconds(lambda: library.forward(x, size))
            + self.milliseconds(lambda: library.backward(there, size)),
            "product_ms": self.milliseconds(lambda: library.multiply(batches, plan._spectra)),
        }

    def _blas(self, spec: ConvSpec, x: Any, w: Any, row: Row) -> Row:
        """torch's unfold, and the matrix product that follows it, apart."""
        torch = self.torch
        plain, flat = x.permute(0, 3, 1, 2).contiguous(), w.reshape(spec.out_channels, -1)

        def unfold() -> Any:
            return torch.nn.functional.unfold(plain, spec.kernel, stride=spec.stride)

        try:
            columns = unfold()
            row["product_ms"] = self.milliseconds(partial(torch.matmul, flat, columns))
            del columns
            row["lowering_ms"] = self.milliseconds(unfold)
            row["ms"] = row["product_ms"] + row["lowering_ms"]
        except Exception as error:  # out of memory, or an index over 2^31
            row["failure"] = said(error)
        return row

    def ablation(self, name: str) -> Iterator[Row]:
        """Figure 4-9 of the thesis: its kernel without one of its parts."""
        spec = replace(layer(name, 128), layout="NHWC")
        x = self.ours(self.torch.randn(spec.input_shape, device=self.device))
        w = self.torch.randn(spec.weight_shape, device=self.device)
        for algorithm in ABLATION:
            row: Row = {"layer": name, "form": algorithm}
            try:
                plan = self.plan(spec, w, algorithm=algorithm)
                y = plan(x)
                row["ms"] = self.milliseconds(plan.start)
                product = [run for each, run in plan.parts if each.code.function in PRODUCTS]
                row["product_ms"] = sum(map(self.milliseconds, product))
                del y, plan
            except Exception as error:
                row["failure"] = said(error)
            yield row


def _spectra(spec: ConvSpec) -> float:
    """Bytes of the weights' transforms in double precision."""
    cells = spec.size[0] * (spec.size[1] // 2 + 1)
    return 16.0 * cells * spec.in_channels * spec.out_channels
