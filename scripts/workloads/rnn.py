"""A recurrent network that answers questions about little stories, in the manner of bAbI's first task.

"mary went to the garden . john moved to the office . ... where is mary ?" has one word for an answer.
"""

import argparse
import random
from collections.abc import Sequence

import torch
import training
from torch import nn

PEOPLE = ("mary", "john", "sandra", "daniel")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
MOVES = ("went", "moved", "journeyed", "travelled")
WORDS = (*PEOPLE, *PLACES, *MOVES, "to", "the", ".", "where", "is", "?")
NUMBERS = {word: number for number, word in enumerate(WORDS)}
CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}


class Reader(nn.Module):
    """Word numbers (batch, words) to logits of the places (batch, places)."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), args.embed_dim)
        self.recurrent = CELLS[args.cell](args.embed_dim, args.hidden, args.layers, batch_first=True)
        self.linear = nn.Linear(args.hidden, len(PLACES))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.recurrent(self.embedding(words))
        return self.linear(outputs[:, -1])


def story(sentences: int, chance: random.Random) -> tuple[list[str], str]:
    """The words of a story that ends with a question, and the answer."""
    words, where = [], {}
    for _ in range(sentences):
        person, place = chance.choice(PEOPLE), chance.choice(PLACES)
        words += [person, chance.choice(MOVES), "to", "the", place, "."]
        where[person] = place
    person = chance.choice(list(where))
    return [*words, "where", "is", person, "?"], where[person]


def options() -> argparse.ArgumentParser:
    parser = training.parser("rnn", __doc__, batch_size=64, batches=64, learning_rate=0.01)
    parser.add_argument("--cell", choices=CELLS, default="lstm")
    parser.add_argument("--embed-dim", type=training.positive, default=32)
    parser.add_argument("--hidden", type=training.positive, default=64)
    parser.add_argument("--layers", type=training.positive, default=1)
    parser.add_argument("--sentences", type=training.positive, default=3, help="in a story")
    return parser


def build(args: argparse.Namespace) -> nn.Module:
    return Reader(args)


def make_data(args: argparse.Namespace) -> training.Data:
    chance = random.Random(args.seed)
    stories = [story(args.sentences, chance) for _ in range(training.samples(args))]
    words = torch.tensor([[NUMBERS[word] for word in words] for words, _ in stories])
    return words, torch.tensor([PLACES.index(answer) for _, answer in stories])


def main(argv: Sequence[str] | None = None) -> None:
    training.run(options(), build, make_data, nn.CrossEntropyLoss(), argv)


if __name__ == "__main__":
    main()
