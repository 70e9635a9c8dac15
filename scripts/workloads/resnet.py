"""A residual network in the manner of ResNet-18 for small images; --width 64 --depth 2 2 2 2 is its full size."""

import argparse
from collections.abc import Sequence

import shapes
import torch
import training
from torch import nn


class Block(nn.Module):
    """Two convolutions, and the input added to what they make of it."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (batch, 3, size, size) to logits (batch, classes)."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        width = args.width
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        blocks, inside = [], width
        for stage, depth in enumerate(args.depth):
            for number in range(depth):
                outside = width << stage
                blocks.append(Block(inside, outside, stride=2 if stage and not number else 1))
                inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(inside, shapes.CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.flatten(self.pool(self.blocks(self.stem(images))), 1))


def options() -> argparse.ArgumentParser:
    parser = training.parser("resnet", __doc__, batch_size=32, batches=16, learning_rate=0.002)
    parser.add_argument("--size", type=training.positive, default=32, help="of an image, in pixels, both ways")
    parser.add_argument("--width", type=training.positive, default=16, help="channels of the first stage")
    parser.add_argument("--depth", type=training.positive, nargs="+", default=[2, 2, 2, 2], help="blocks of each stage")
    return parser


def build(args: argparse.Namespace) -> nn.Module:
    return ResNet(args)


def make_data(args: argparse.Namespace) -> training.Data:
    return shapes.images(training.samples(args), args.size, 3)


def main(argv: Sequence[str] | None = None) -> None:
    training.run(options(), build, make_data, nn.CrossEntropyLoss(), argv)


if __name__ == "__main__":
    main()
