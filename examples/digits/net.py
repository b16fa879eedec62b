"""The digit reader as a module of PyTorch, a small MobileNetV2."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own habit)

STEM = 16
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 2, 2), (6, 64, 2, 1))
HEAD = 160


class ConvBN(nn.Module):  # type: ignore[misc, unused-ignore]
    """Convolution, batch norm and, unless `linear`, ReLU6; named as in `examples.networks`."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        linear: bool = False,
    ):
        super().__init__()
        self.conv = nn.Conv2d(
            inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False
        )
        self.bn = nn.BatchNorm2d(outputs)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        """Map `(n, inputs, h, w)` to `(n, outputs, h / stride, w / stride)`."""
        y = self.bn(self.conv(x))
        return y if self.linear else F.relu6(y)


class InvertedResidual(nn.Module):  # type: ignore[misc, unused-ignore]
    """The block of MobileNetV2; see `examples.networks.mobilenet.inverted_residual`."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int):
        super().__init__()
        wide = inputs * expansion
        self.expand = ConvBN(inputs, wide, 1) if expansion != 1 else nn.Identity()
        self.depthwise = ConvBN(wide, wide, 3, stride, groups=wide)
        self.project = ConvBN(wide, outputs, 1, linear=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Map `(n, inputs, h, w)` to `(n, outputs, h / stride, w / stride)`."""
        y = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class DigitNet(nn.Module):  # type: ignore[misc, unused-ignore]
    """`(n, 1, 32, 32)` scaled pixels to `(n, 10)` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvBN(1, STEM, 3, 2)
        blocks, inputs = [], STEM
        for expansion, outputs, count, stride in STAGES:
            for index in range(count):
                blocks.append(
                    InvertedResidual(inputs, outputs, expansion, stride if index == 0 else 1)
                )
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvBN(inputs, HEAD, 1)
        self.classifier = nn.Linear(HEAD, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        y = self.head(self.blocks(self.stem(x))).mean((2, 3))
        return self.classifier(F.dropout(y, 0.1, self.training))
