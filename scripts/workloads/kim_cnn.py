"""The text CNN of Kim (2014) with many labels a document: embedding, one convolution over it, max over time, linear.

The defaults are those of LibMultiLabel's `kim_cnn` on rcv1 (embedding 300, filter size 2, 128 filters, 103 classes,
about 124 words), but for a smaller vocabulary.
"""

import argparse
from collections.abc import Sequence

import torch
import training
from torch import nn

WORDS_OF_A_CLASS = 5


class KimCNN(nn.Module):
    """Documents as word numbers (batch, length) to logits (batch, classes)."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(args.vocabulary, args.embed_dim)
        self.convolutions = nn.ModuleList(nn.Conv1d(args.embed_dim, args.filters, size) for size in args.filter_size)
        self.relu = nn.ReLU()
        # A pool as long as its input is the maximum over time.
        self.pools = nn.ModuleList(nn.MaxPool1d(args.length - size + 1) for size in args.filter_size)
        self.dropout = nn.Dropout(args.dropout)
        self.linear = nn.Linear(args.filters * len(args.filter_size), args.classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        embedded = self.embedding(words).transpose(1, 2)
        strongest = [pool(self.relu(convolution(embedded))).squeeze(2) for convolution, pool in zip(self.convolutions, self.pools, strict=True)]
        return self.linear(self.dropout(torch.cat(strongest, 1)))


def options() -> argparse.ArgumentParser:
    parser = training.parser("kim_cnn", __doc__, batch_size=64, batches=32, learning_rate=0.001)
    parser.add_argument("--embed-dim", type=training.positive, default=300)
    parser.add_argument("--filters", type=training.positive, default=128, help="of each size")
    parser.add_argument("--filter-size", type=training.positive, nargs="+", default=[2])
    parser.add_argument("--length", type=training.positive, default=124, help="words in a document")
    parser.add_argument("--classes", type=training.positive, default=103)
    parser.add_argument("--vocabulary", type=training.positive, default=5000)
    parser.add_argument("--dropout", type=float, default=0.2)
    return parser


def build(args: argparse.Namespace) -> nn.Module:
    return KimCNN(args)


def make_data(args: argparse.Namespace) -> training.Data:
    """Documents of any words, with a tenth of them words that only documents of its classes have more of."""
    count = training.samples(args)
    labels = torch.randint(args.classes, (count, 3))
    words = torch.randint(args.vocabulary, (count, args.length))
    typical = labels.gather(1, torch.randint(3, (count, args.length))) * WORDS_OF_A_CLASS
    typical += torch.randint(WORDS_OF_A_CLASS, (count, args.length))
    words = torch.where(torch.rand(count, args.length) < 0.1, typical % args.vocabulary, words)
    return words, torch.zeros(count, args.classes).scatter_(1, labels, 1.0)


def main(argv: Sequence[str] | None = None) -> None:
    training.run(options(), build, make_data, nn.BCEWithLogitsLoss(), argv)


if __name__ == "__main__":
    main()
