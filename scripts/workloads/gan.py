"""A small generative adversarial network: one network (the generator) draws images of a shape, another (the discriminator) distinguishes them from given ones.

Neither loss need go down when such a pair learns, so first and last loss are here how far the images drawn are from
the given ones: the root mean square difference of each pixel's mean and spread.
"""

import argparse
from collections.abc import Callable, Sequence

import shapes
import torch
import training
from torch import nn

SIZE = 28
DRAWN = 256  # images to compare by


def generator(args: argparse.Namespace) -> nn.Sequential:
    """Noise (batch, latent) to images (batch, 1, 28, 28) of 0 to 1."""
    width = args.width
    return nn.Sequential(
        nn.Linear(args.latent, 2 * width * 7 * 7),
        nn.Unflatten(1, (2 * width, 7, 7)),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


def discriminator(args: argparse.Namespace) -> nn.Sequential:
    """Images (batch, 1, 28, 28) to logits (batch, 1): above 0 for a given one."""
    width = args.width
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(2 * width * 7 * 7, 1),
    )


def adversaries(args: argparse.Namespace, networks: nn.ModuleDict) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """`train_batch(images, _)`: a step of the discriminator, then one of the generator; returns the latter's loss."""
    generator, discriminator = networks["generator"], networks["discriminator"]
    generator_optimizer, discriminator_optimizer = (training.adam(args, network, betas=(0.5, 0.999)) for network in (generator, discriminator))
    criterion = nn.BCEWithLogitsLoss()

    def train_batch(images: torch.Tensor, _: torch.Tensor) -> float:
        given, drawn = torch.ones(len(images), 1), torch.zeros(len(images), 1)
        fakes = generator(torch.randn(len(images), args.latent))
        training.backward(criterion(discriminator(images), given) + criterion(discriminator(fakes.detach()), drawn))
        training.step(discriminator_optimizer)
        loss = criterion(discriminator(fakes), given)
        training.backward(loss)
        training.step(generator_optimizer)
        # The loss above gave the discriminator gradients, too.
        discriminator_optimizer.zero_grad()
        return float(loss.item())

    return train_batch


@torch.no_grad()
def distance(args: argparse.Namespace, draws: nn.Module, data: training.Data) -> float:
    """How far images drawn now are from given ones."""
    given, _ = training.load_batch(data, torch.arange(min(DRAWN, training.samples(args))))
    drawn = draws(torch.randn(len(given), args.latent))
    apart = torch.cat([given.mean(0) - drawn.mean(0), given.std(0) - drawn.std(0)])
    return float(apart.square().mean().sqrt())


def options() -> argparse.ArgumentParser:
    parser = training.parser("gan", __doc__, batch_size=32, batches=48, learning_rate=0.001)
    parser.add_argument("--latent", type=training.positive, default=32, help="numbers that an image is drawn from")
    parser.add_argument("--width", type=training.positive, default=16, help="channels of the outer convolutions")
    return parser


def build(args: argparse.Namespace) -> nn.ModuleDict:
    return nn.ModuleDict({"generator": generator(args), "discriminator": discriminator(args)})


def make_data(args: argparse.Namespace) -> training.Data:
    return shapes.images(training.samples(args), SIZE, 1, classes=1)


def main(argv: Sequence[str] | None = None) -> None:
    args = options().parse_args(argv)
    training.set_up(args)
    networks, data = build(args), make_data(args)
    first = distance(args, networks["generator"], data)
    figures = training.train(args, data, adversaries(args, networks))
    figures |= {"first_loss": first, "last_loss": distance(args, networks["generator"], data)}
    training.say(args, networks, figures)


if __name__ == "__main__":
    main()
