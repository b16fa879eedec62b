"""MobileNetV2 on a GPU, ours and torch's, for `gpu.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import leanconv as lc
from gpu_page import Row
from gpu_stopwatch import Stopwatch
from harness import model_file
from leanconv.types import FLOAT32, FLOAT64, DType

REPORT_SIZE = (244, 244)


def mobilenet(height: int, width: int) -> bytes:
    """MobileNetV2 for images of a size, and any batch."""
    import onnx

    model = onnx.load(model_file("mobilenetv2"))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_param = "batch"
    for dim, extent in zip(dims[2:], (height, width), strict=True):
        dim.dim_value = extent
    return bytes(model.SerializeToString())


class Networks(Stopwatch):
    """MobileNetV2, each engine by itself."""

    def network(self, batch: int, dtype: DType, precision: str | None) -> Iterator[Row]:
        """MobileNetV2 from one graph; float64 at the report's size, 7.78 ms there."""
        size = REPORT_SIZE if dtype == FLOAT64 else (224, 224)
        x = self.torch.randn((batch, 3, *size), device=self.device)
        x = x.to(getattr(self.torch, dtype))
        kept = None if dtype == FLOAT32 else dtype
        net: Any = lc.load(mobilenet(*size), device="cuda", dtype=kept, precision=precision)
        held = self.ours(x)
        y = self.torch.from_dlpack(net(held))
        out = net.compiled.memory.array((batch, 1000), dtype)
        address = held.data_ptr() if hasattr(held, "data_ptr") else held.ctypes.data
        addresses = [address, out.address]
        for _ in range(2):
            net.compiled.start(addresses)
        yield {
            "batch": batch,
            "size": size,
            "engine": f"leanconv {precision or dtype}",
            "ms": self.milliseconds(lambda: net.compiled.start(addresses)),
            "bytes": net.plan.memory_bytes,
            "launches": net.plan.launches,
            "error": self.network_error(size, x, y),
        }

    def network_error(self, size: tuple[int, int], x: Any, y: Any) -> float:
        """Relative error of the first image against torch in float64."""
        model = self.torch_model(size).double()
        with self.torch.inference_mode():
            exact = model(x[:1].double())
            exact = exact[0] if isinstance(exact, tuple) else exact
        found = y[:1].to(exact.device).double().reshape(exact.shape)
        return float((found - exact).abs().max() / exact.abs().max())

    def torch_model(self, size: tuple[int, int] = (224, 224)) -> Any:
        """The same network in torch."""
        import onnx

        from engines.onnx_to_torch import OnnxModule

        graph = onnx.load_from_string(mobilenet(*size)).graph
        return OnnxModule(graph).to(self.device).eval()

    def torch_network(self, batch: int) -> Iterator[Row]:
        """torch by itself and from a graph, in both layouts and in half precision."""
        torch = self.torch
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        plain = torch.randn((batch, 3, 224, 224), device=self.device)
        for label, dtype, layout in (
            (FLOAT32, torch.float32, torch.contiguous_format),
            ("float32 nhwc", torch.float32, torch.channels_last),
            ("float16 nhwc", torch.float16, torch.channels_last),
        ):
            model = self.torch_model().to(dtype).to(memory_format=layout)
            x = plain.to(dtype).contiguous(memory_format=layout)
            with torch.inference_mode():

                def run(m: Any = model, a: Any = x) -> Any:
                    made = m(a)
                    return made[0] if isinstance(made, tuple) else made

                row: Row = {"batch": batch, "engine": f"torch {label}"}
                yield {**row, "ms": self.milliseconds(run), "bytes": self.peak_bytes(run)}
                row = {"batch": batch, "engine": f"torch, graph {label}"}
                yield {**row, "ms": self.milliseconds(self.recorded(run))}

    def torch_compiled(self, batch: int) -> Iterator[Row]:
        """torch.compile, which takes a minute by itself."""
        torch = self.torch
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        model = self.torch_model()
        x = torch.randn((batch, 3, 224, 224), device=self.device)
        with torch.inference_mode():
            made = torch.compile(model, mode="reduce-overhead")
            for _ in range(3):
                made(x)
            ms = self.milliseconds(lambda: made(x))
        yield {"batch": batch, "engine": "torch.compile float32", "ms": ms}
