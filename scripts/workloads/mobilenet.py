"""A network in the manner of MobileNetV2 for small images: inverted residuals around depthwise convolutions.

Its table of stages is the paper's; the strides of the first stages are 1, for images of 32 pixels.
"""

import argparse
from collections.abc import Sequence

import shapes
import torch
import training
from torch import nn

# Expansion, channels, blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Wider by a pointwise convolution, filtered channel by channel, narrow again; added to its input where it fits."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inside * expansion
        expand = [] if expansion == 1 else [convolution(inside, wide, 1)]
        self.layers = nn.Sequential(
            *expand,
            convolution(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.adds = stride == 1 and inside == outside

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x) if self.adds else self.layers(x)


def convolution(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU6(inplace=True),
    )


class MobileNet(nn.Module):
    """Images (batch, 3, size, size) to logits (batch, classes)."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        inside = scaled(32, args.width)
        layers: list[nn.Module] = [convolution(3, inside, 3)]
        for expansion, channels, depth, stride in STAGES[: args.stages]:
            outside = scaled(channels, args.width)
            for number in range(depth):
                layers.append(InvertedResidual(inside, outside, 1 if number else stride, expansion))
                inside = outside
        last = scaled(1280, args.width)
        self.features = nn.Sequential(*layers, convolution(inside, last, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(args.dropout)
        self.linear = nn.Linear(last, shapes.CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(self.dropout(torch.flatten(self.pool(self.features(images)), 1)))


def scaled(channels: int, width: float) -> int:
    """Channels for a factor of width: a multiple of 8."""
    return max(8, round(channels * width / 8) * 8)


def options() -> argparse.ArgumentParser:
    parser = training.parser("mobilenet", __doc__, batch_size=32, batches=16, learning_rate=0.002)
    parser.add_argument("--size", type=training.positive, default=32, help="of an image, in pixels, both ways")
    parser.add_argument("--width", type=float, default=0.25, help="factor of all numbers of channels")
    parser.add_argument("--stages", type=training.positive, default=len(STAGES), help="how many of the paper's stages")
    parser.add_argument("--dropout", type=float, default=0.1)
    return parser


def build(args: argparse.Namespace) -> nn.Module:
    return MobileNet(args)


def make_data(args: argparse.Namespace) -> training.Data:
    return shapes.images(training.samples(args), args.size, 3)


def main(argv: Sequence[str] | None = None) -> None:
    training.run(options(), build, make_data, nn.CrossEntropyLoss(), argv)


if __name__ == "__main__":
    main()
