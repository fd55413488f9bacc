"""Tangents of images: the directions that small moves of an image take in the space of its pixels (RKHS 4.2).

A tangent is the derivative with respect to the amount of a move, by central differences, or the difference
between the moved image and the image (RKHS 6.3). Images may first be smoothed by a Gaussian, because pixels
are samples of a continuous image (RKHS footnote 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.declarations import Field, Stored
from orbitwise.functionals.functional import Functional, Gradients, check_matrix
from orbitwise.transforms.deformations import gaussian_filters
from orbitwise.transforms.images import AffineWarp

Move = tuple[str, float]
"""A move and its amount."""

MOVES = ("shift_x", "shift_y", "angle", "log_scale", "shear_x", "shear_y")
"""Right and down in pixels; counter-clockwise in radians; the logarithm of a factor; what is one pixel lower
moves that many pixels to the right; what is one pixel further right moves that many pixels down."""

TEN_DEGREES = math.radians(10)
PAPER_MOVES: tuple[Move, ...] = (
    ("shift_x", 2.0), ("shift_x", -2.0), ("shift_y", 2.0), ("shift_y", -2.0),
    ("angle", TEN_DEGREES), ("angle", -TEN_DEGREES),
    ("log_scale", math.log(1.1)), ("log_scale", math.log(0.9)),
    ("shear_x", 0.1), ("shear_x", -0.1), ("shear_y", 0.1), ("shear_y", -0.1),
)  # fmt: skip
"""The moves of RKHS 6.3: 2-pixel shifts, rotations by 10 degrees, scalings and shears by 0.1, both ways."""

STEP = 1e-2
"""The step of central differences; bilinear warps are linear within a pixel."""


@final
class ImageTangent(Functional):
    """∂_v g(x) for the tangents v of images x: k rows per image, in one block (RKHS eq. 9).

    Each of the `moves` is a name of `MOVES`, whose tangent is the derivative by its amount, or a pair (name,
    amount), whose tangent is the moved image minus the image. `smoothing` is the width in pixels of the
    Gaussian that images are smoothed by before they move, 0 for none.

    Parameters
    ----------
    image_shape : (height, width) or (channels, height, width)
        How a row of pixels is read.
    moves : sequence of str or (str, float), default=MOVES
        Names of `MOVES`, or names with amounts.
    smoothing : float, default=0.0
        Width in pixels of the Gaussian that images are smoothed by first.
    """

    stored = Stored({"smoothing": Field(least=0, most=10_000)})

    def __init__(
        self, image_shape: Sequence[int], moves: Sequence[str | Move] = MOVES, smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.image_shape = AffineWarp(image_shape).image_shape
        self.moves = tuple(move if isinstance(move, str) else (move[0], move[1]) for move in moves)
        self.smoothing = float(smoothing)
        _affine_parameters(self.moves, self.image_shape)
        _check_smoothing(smoothing)

    def lower(self, x: Tensor, generator: torch.Generator | None = None) -> Gradients:
        check_matrix(x, self)
        tangents = image_tangents(x, self.image_shape, self.moves, self.smoothing)
        return Gradients(x[:, None, :], torch.ones_like(x[:, :1]), tangents[:, None])


def image_tangents(
    images: Float[Tensor, "n d"],
    image_shape: Sequence[int],
    moves: Sequence[str | Move] = MOVES,
    smoothing: float = 0.0,
) -> Float[Tensor, "n k d"]:
    """The tangents of images along moves, as `ImageTangent` takes them."""
    forward = _affine_parameters(moves, image_shape)
    backward = _affine_parameters(moves, image_shape, sign=-1.0)
    # A derivative is (ahead - behind)/2h, a difference ahead - here.
    is_whole = torch.tensor([not isinstance(move, str) for move in moves], device=images.device)
    backward[is_whole.cpu()] = 0.0
    smoothed = smoothed_images(images, image_shape, smoothing)
    ahead, behind = (_moved(smoothed, image_shape, alpha) for alpha in (forward, backward))
    return torch.where(is_whole[:, None], ahead - behind, (ahead - behind) / (2 * STEP))


def moved_images(
    images: Float[Tensor, "n d"], image_shape: Sequence[int], moves: Sequence[Move] = PAPER_MOVES
) -> Float[Tensor, "n k d"]:
    """Images moved by each of the moves, with zeros outside the image: virtual samples (RKHS 6.3)."""
    if any(isinstance(move, str) for move in moves):
        raise ValueError(f"A moved image needs an amount: give moves as (name, amount), not {tuple(moves)}.")
    return _moved(images, image_shape, _affine_parameters(moves, image_shape))


def moved_pairs(
    images: Float[Tensor, "n d"], image_shape: Sequence[int], moves: Sequence[Move] = PAPER_MOVES
) -> Float[Tensor, "pairs 2 d"]:
    """(moved image, image) for every image and move, as `Difference` takes them; moves run fastest."""
    moved = moved_images(images, image_shape, moves)
    return torch.stack([moved, images[:, None].expand_as(moved)], dim=2).flatten(0, 1)


def smoothed_images(
    images: Float[Tensor, "n d"], image_shape: Sequence[int], smoothing: float
) -> Float[Tensor, "n d"]:
    """Images smoothed by a Gaussian of this width in pixels, with zeros outside."""
    warp = AffineWarp(image_shape)
    warp.check(images)
    _check_smoothing(smoothing)
    if smoothing == 0:
        return images
    rows, columns = (gaussian_filters(size, smoothing, images)[0] for size in warp.image_shape[1:])
    # S X Sᵀ for every channel
    return (rows @ images.reshape(len(images), *warp.image_shape) @ columns).flatten(1)


def _moved(images: Tensor, image_shape: Sequence[int], alpha: Float[Tensor, "k p"]) -> Float[Tensor, "n k d"]:
    return AffineWarp(image_shape)(images, alpha.to(images).expand(len(images), -1, -1))


def _affine_parameters(
    moves: Sequence[str | Move], image_shape: Sequence[int], sign: float = 1.0
) -> Float[Tensor, "k p"]:
    """The parameters of `AffineWarp` for each move; a move without an amount is a small step."""
    _, height, width = AffineWarp(image_shape).image_shape
    if len(moves) == 0:
        raise ValueError(f"Images need at least one move to have tangents: {', '.join(MOVES)}.")
    rows = []
    for move in moves:
        name, amount = (move, STEP) if isinstance(move, str) else move
        if name not in MOVES or not math.isfinite(amount):
            raise ValueError(
                f"A move is one of {', '.join(MOVES)}, or such a name and a finite amount, not {move!r}."
            )
        amount = sign * amount
        # angle, log_scale_x, log_scale_y, shear, shift_x and shift_y; a shift of 2/width is one pixel
        rows.append(
            {
                "shift_x": [0.0, 0.0, 0.0, 0.0, 2 * amount / width, 0.0],
                "shift_y": [0.0, 0.0, 0.0, 0.0, 0.0, 2 * amount / height],
                "angle": [amount, 0.0, 0.0, 0.0, 0.0, 0.0],
                "log_scale": [0.0, amount, amount, 0.0, 0.0, 0.0],
                "shear_x": [0.0, 0.0, 0.0, amount, 0.0, 0.0],
                "shear_y": _vertical_shear(amount),
            }[name]
        )
    return torch.tensor(rows, dtype=torch.float64)


def _vertical_shear(amount: float) -> list[float]:
    """[[1, 0], [a, 1]] as turn · shear · scale: the turn takes the first column to its place."""
    stretch = 0.5 * math.log1p(amount**2)
    return [-math.atan(amount), stretch, -stretch, amount, 0.0, 0.0]


def _check_smoothing(smoothing: float) -> None:
    if not 0 <= smoothing < math.inf:
        raise ValueError(f"smoothing is a width in pixels of 0 or more, not {smoothing}.")
