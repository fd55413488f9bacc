"""What the tests of all libraries share: fixed moves, pictures that reach the border, our own pixels."""

import math

import pytest
import torch

from orbitwise.export import OrbitTransform
from orbitwise.orbits import ImageOrbit
from orbitwise.transforms import AffineWarp

NAMES = ("angle", "log_scale_x", "log_scale_y", "shear", "shift_x", "shift_y")
SHAPES = [(1, 16, 16), (3, 12, 18), (1, 17, 11)]


def fixed(shape, pixels=(0, 0), **values):
    """α with shifts in pixels."""
    _, height, width = shape
    return {**values, "shift_x": 2 * pixels[0] / width, "shift_y": 2 * pixels[1] / height}


MOVES = {
    "rotation": lambda shape: fixed(shape, angle=0.5),
    "scale": lambda shape: fixed(shape, log_scale_x=0.3, log_scale_y=-0.2),
    "shear": lambda shape: fixed(shape, shear=0.4),
    "shift": lambda shape: fixed(shape, pixels=(3, -2)),
    "combined": lambda shape: fixed(
        shape, (-2, 1), angle=-0.3, log_scale_x=0.2, log_scale_y=-0.1, shear=0.25
    ),
}
moves = pytest.mark.parametrize("move", MOVES)
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def image_of(shape, fill=0.0):
    """Smooth random pixels, not zero at the border, above `fill`."""
    generator = torch.Generator().manual_seed(1)
    rough = torch.rand(1, shape[0], 5, 5, generator=generator)
    return fill + 0.2 + torch.nn.functional.interpolate(rough, shape[1:], mode="bicubic")[0].clamp(0, 1)


def ours(image, values):
    alpha = torch.tensor([values.get(name, 0.0) for name in NAMES])[None, None]
    return AffineWarp(image.shape)(image.reshape(1, -1), alpha).reshape(image.shape)


def linear(values):
    """The matrix R H S of the content's move."""
    cos, sin = math.cos(values.get("angle", 0.0)), math.sin(values.get("angle", 0.0))
    turn = torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64)
    shear = torch.tensor([[1.0, values.get("shear", 0.0)], [0.0, 1.0]], dtype=torch.float64)
    scales = [values.get("log_scale_x", 0.0), values.get("log_scale_y", 0.0)]
    return turn @ shear @ torch.tensor(scales, dtype=torch.float64).exp().diag()


def fixed_orbit(shape, values):
    """The orbit of this one move."""
    return ImageOrbit(shape, {name: (value, value) for name, value in values.items() if value}, learnable=[])


SLANTED = {"angle": (0.1, 0.6), "shear": (0.0, 0.3), "log_scale_x": (-0.2, 0.4), "log_scale_y": (-0.2, 0.4)}


def slanted_orbit(shape=(1, 16, 16), **arguments):
    """Ranges that are far from symmetric, so that a wrong sign shows in the mean of many draws."""
    return ImageOrbit(shape, SLANTED | arguments.pop("affine", {}), learnable=[], **arguments)


def mean_distance(orbit, transform, image, count=400):
    """Between the mean images of many draws, relative to how far the orbit moves the mean."""
    faithful = OrbitTransform(orbit, generator=torch.Generator().manual_seed(0))
    own = faithful(image.expand(count, *image.shape)).mean(0)
    their = torch.stack([transform(image) for _ in range(count)]).mean(0)
    return float((own - their).norm() / (own - image).norm())
