"""A small image classifier in the manner of VGG: stages of two convolutions and a pool, then two linear layers."""

import argparse
from collections.abc import Sequence

import shapes
import torch
import training
from torch import nn


class ImageCNN(nn.Module):
    """Images (batch, 3, size, size) to logits (batch, classes)."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        widths = [3, *args.channels]
        self.stages = nn.Sequential(*map(stage, widths, widths[1:]))
        last = args.size // 2 ** len(args.channels)
        self.classifier = nn.Sequential(
            nn.Linear(widths[-1] * last * last, args.hidden),
            nn.ReLU(),
            nn.Dropout(args.dropout),
            nn.Linear(args.hidden, shapes.CLASSES),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.stages(images), 1))


def stage(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def options() -> argparse.ArgumentParser:
    parser = training.parser("image_cnn", __doc__, batch_size=32, batches=32, learning_rate=0.001)
    parser.add_argument("--size", type=training.positive, default=32, help="of an image, in pixels, both ways")
    parser.add_argument("--channels", type=training.positive, nargs="+", default=[16, 32, 64], help="of each stage")
    parser.add_argument("--hidden", type=training.positive, default=128, help="units between the linear layers")
    parser.add_argument("--dropout", type=float, default=0.2)
    return parser


def build(args: argparse.Namespace) -> nn.Module:
    return ImageCNN(args)


def make_data(args: argparse.Namespace) -> training.Data:
    return shapes.images(training.samples(args), args.size, 3)


def main(argv: Sequence[str] | None = None) -> None:
    training.run(options(), build, make_data, nn.CrossEntropyLoss(), argv)


if __name__ == "__main__":
    main()
