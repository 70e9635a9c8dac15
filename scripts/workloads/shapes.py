"""Images to learn from, made here: each shows one of ten shapes somewhere, in some size and colour, under noise."""

import torch

CLASSES = 10


def images(count: int, size: int, channels: int, classes: int = CLASSES) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` images: bytes (count, channels, size, size), and which shape it is, int64 (count,)."""
    labels = torch.randint(classes, (count,))
    radius = (size * (0.2 + 0.15 * torch.rand(count))).view(-1, 1, 1)
    centre = size * (0.4 + 0.2 * torch.rand(2, count, 1, 1))
    across = torch.arange(size).view(1, 1, -1) - centre[0]
    down = torch.arange(size).view(1, -1, 1) - centre[1]
    inside = mask(labels.view(-1, 1, 1), across / radius, down / radius).unsqueeze(1)
    colour = 128 + 127 * torch.rand(count, channels, 1, 1)
    noise = 64 * torch.rand(count, channels, size, size)
    return torch.where(inside, colour, noise).to(torch.uint8), labels


def mask(labels: torch.Tensor, across: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Which points, in radii from the centre, are inside the shape of each label."""
    x, y = torch.broadcast_tensors(across.abs(), down.abs())
    far, near, distance = torch.maximum(x, y), torch.minimum(x, y), torch.hypot(x, y)
    square = far < 1
    shapes = (
        square,
        distance < 1,  # disc
        x + y < 1,  # diamond
        square & (near < 0.3),  # cross
        (distance < 1) & (distance > 0.5),  # ring
        square & (far > 0.6),  # frame
        (x < 1) & (y < 0.3),  # bar lying
        (x < 0.3) & (y < 1),  # bar standing
        (y < 1) & (2 * x < 1 + down),  # triangle
        square & ((across > 0) == (down > 0)),  # two squares of a chessboard
    )
    return torch.stack(shapes).gather(0, labels.expand_as(square).unsqueeze(0)).squeeze(0)
