"""Problems whose invariance is known: targets drawn from the model itself, and images moved by known amounts.

A drawn target is f(x) = E_α g(x_α) with g from an RBF prior and α uniform in known ranges, plus small noise.
The expectation is a sum over many more nodes than learning uses. An image that was moved keeps its label; its
ranges are known up to how much the images varied before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from orbitwise import datasets
from orbitwise.functionals.averages import OrbitAverage, freeze_functional, num_dimensions
from orbitwise.orbits.clouds import PointCloudOrbit
from orbitwise.orbits.images import ImageOrbit
from orbitwise.orbits.nodes import MOST_GAUSS_DIMENSIONS
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.orbits.ranges import Bounds, image_widths
from orbitwise.orbits.signals import SignalOrbit
from orbitwise.process.process import Process
from orbitwise.transforms.images import AFFINE_PARAMETERS, AffineWarp

Array = NDArray[np.float64]
Truth = Mapping[str, float]

NOISE = 0.1
"""The deviation of the noise over that of f."""
NODES_SEED = 7
"""Of the nodes that stand for the true orbit; no fit uses them."""
SHAPES = {"digits": (8, 8), "mnist": (28, 28)}
LENGTH, SAMPLES_BEFORE = 32, 1.0
NUM_POINTS, ANGLE_BEFORE = 6, 0.2


@final
@dataclass(frozen=True)
class Setting:
    """Inputs, the true half-widths of their ranges, and the lengthscale of g, in units of the inputs."""

    name: str
    truth: Truth
    lengthscale: float

    def inputs(self, num_rows: int) -> Array:
        """Digits in random order, or made-up signals and point clouds."""
        generator = np.random.default_rng(0)
        kind = self.name.split(",")[0]
        if kind == "signals":
            return made_up_signals(num_rows, generator)
        if kind.startswith("clouds"):
            return generator.normal(size=(num_rows, NUM_POINTS * int(kind[-2])))
        return images_of("digits", num_rows)[0]

    def orbit(self, widths: Truth | None = None) -> DrawnOrbit:
        """The orbit with these half-widths, or as a user who does not know them would start."""
        kind = self.name.split(",")[0]
        if kind == "signals":
            shift = SAMPLES_BEFORE if widths is None else widths["shift"]
            return SignalOrbit(LENGTH, shift, boundary="wrap")
        if kind.startswith("clouds"):
            angle = ANGLE_BEFORE if widths is None else widths["angle"]
            return PointCloudOrbit(NUM_POINTS, int(kind[-2]), angle)
        natural = {name: image_widths(SHAPES["digits"])[name] for name in self.truth}
        return ImageOrbit(SHAPES["digits"], natural if widths is None else _on(widths))


TURN = {"angle": math.radians(30)}
PIXEL = 2 / SHAPES["digits"][0]
SHIFT = {"shift_x": 1.3 * PIXEL, "shift_y": 0.8 * PIXEL}
"""About a pixel, which is where learning starts."""
SETTINGS = (
    Setting("digits, turned", TURN, 1.5),
    Setting("digits, shifted", SHIFT, 1.5),
    Setting("digits, turned and shifted", TURN | SHIFT, 1.5),
    Setting("digits, turned and not shifted", TURN | dict.fromkeys(SHIFT, 0.0), 1.5),
    Setting("signals, shifted", {"shift": 3.0}, 3.0),
    Setting("clouds 2D, turned", {"angle": math.radians(40)}, 2.0),
    Setting("clouds 3D, turned", {"angle": math.radians(60)}, 2.5),
)


def draw_targets(
    setting: Setting,
    x: Float[Tensor, "n d"],
    num_outputs: int,
    draws: Sequence[int],
    num_nodes: int,
) -> list[Float[Tensor, "n c"]]:
    """Targets of independent functions f, `num_outputs` columns for every draw: L z with LLᵀ = cov(f)."""
    functional = OrbitAverage(setting.orbit(setting.truth)).double()
    dimensions = num_dimensions(functional)
    if dimensions is not None and dimensions <= MOST_GAUSS_DIMENSIONS:
        frozen = freeze_functional(functional, num_nodes, rule="gauss")
    else:
        frozen = freeze_functional(functional, num_nodes, torch.Generator().manual_seed(NODES_SEED))
    kernel = RBFKernel().to(x)
    kernel.lengthscale = torch.tensor(setting.lengthscale)
    with torch.no_grad():
        covariance = Process(None, kernel).covariance(frozen.to(x.device).atoms(x))
    size = covariance.diagonal().mean().sqrt()
    lower = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(len(x)).to(x)).cpu()
    targets = []
    for draw in draws:
        generator = torch.Generator().manual_seed(draw)
        normal = torch.randn(2, len(x), num_outputs, generator=generator, dtype=x.dtype)
        # f + noise
        targets.append(lower @ normal[0] + NOISE * size.cpu() * normal[1])
    return targets


def made_up_signals(num_rows: int, generator: np.random.Generator) -> Array:
    """Periodic signals of five random harmonics and unit variance."""
    time = 2 * np.pi * np.arange(LENGTH) / LENGTH
    harmonics = np.arange(1, 6)
    waves = np.concatenate([np.cos(harmonics[:, None] * time), np.sin(harmonics[:, None] * time)])
    return generator.normal(size=(num_rows, 10)) @ waves / math.sqrt(5)


def images_of(name: str, num_rows: int, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """The first images and labels of a set in random order, grey levels from 0 to 1."""
    found = datasets.load(name)
    images, labels = (found.x, found.y) if name == "digits" else (found.x_train, found.y_train)
    rows = np.random.default_rng(seed).permutation(len(images))[:num_rows]
    return images[rows].reshape(len(rows), -1).astype(np.float64) / float(images.max()), labels[rows]


def moved_images(images: Array, shape: tuple[int, int], truth: Truth, seed: int) -> Array:
    """Each image moved once, uniformly within ± the half-widths."""
    bounds = Bounds(AFFINE_PARAMETERS, _on(truth), ())
    noise = np.random.default_rng([seed, 1]).uniform(-1, 1, (len(images), 1, len(AFFINE_PARAMETERS)))
    with torch.no_grad():
        alpha = bounds.place(torch.from_numpy(noise))
        return AffineWarp(shape)(torch.from_numpy(images), alpha)[:, 0].numpy()


def _on(widths: Truth) -> dict[str, float]:
    return {name: width for name, width in widths.items() if width > 0}
