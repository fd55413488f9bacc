"""Which wide networks are compared, on which images, how many, and with which orbit: the cells."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from jaxtyping import Float, Int
from torch import Tensor

from orbitwise import datasets
from orbitwise.kernels import WideConvolutionKernel, WideNetworkKernel, log_positive


class Model(NamedTuple):
    """A wide network: "dense", "convolutional" (read out at all positions) or "pooled" (their average)."""

    kind: str
    activation: str
    depth: int
    residual: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {'residual ' * self.residual}{self.activation} {self.depth}"

    def kernel(self, size: int) -> ScaleKernel:
        """With a height of its own, because that of erf networks is bounded."""
        settings: dict[str, Any] = {"activation": self.activation, "residual": self.residual}
        if self.kind == "dense":
            base: Kernel = WideNetworkKernel(self.depth, **settings)
        else:
            pooled = self.kind == "pooled"
            padding = "circular" if pooled else "zero"
            base = WideConvolutionKernel(
                (size, size), self.depth, padding=padding, pooling=pooled, **settings
            )
        return ScaleKernel(base, outputscale_constraint=log_positive()).double()


class Data(NamedTuple):
    """Images of one size, and labels."""

    x: Float[Tensor, "n d"]
    y: Int[Tensor, " n"]
    x_test: Float[Tensor, "t d"]
    y_test: Int[Tensor, " t"]

    @classmethod
    def of(cls, size: int, num_test: int, seed: int, device: str) -> Data:
        """Random training images and the first test images, their pixels averaged down to the size."""
        data = datasets.load("mnist")
        order = np.random.default_rng(seed).permutation(len(data.x_train))

        def rows(images: Any) -> Tensor:
            pictures = torch.from_numpy(np.asarray(images)).reshape(-1, 1, 28, 28).double() / 255
            return torch.nn.functional.interpolate(pictures, size=size, mode="area").flatten(1).to(device)

        def labels(codes: Any) -> Tensor:
            return torch.from_numpy(np.asarray(codes).astype(np.int64)).to(device)

        chosen = order[:10_000]
        return cls(
            rows(data.x_train[chosen]),
            labels(data.y_train[chosen]),
            rows(data.x_test[:num_test]),
            labels(data.y_test[:num_test]),
        )


class Cell(NamedTuple):
    """A model on so many rows, without an orbit or with a learned one."""

    model: Model
    rows: int
    orbit: str
    size: int

    @property
    def name(self) -> str:
        return f"{self.model.name} | {self.rows} | {self.orbit} | {self.size}"


DENSE = [Model("dense", activation, depth) for depth in (1, 2, 4) for activation in ("relu", "erf")]
DENSE += [Model("dense", "relu", depth, residual=True) for depth in (2, 4)]
MAIN = [Model("dense", "relu", 2), Model("dense", "erf", 2), Model("dense", "relu", 4, residual=True)]
CONVOLUTIONS = [Model("convolutional", "relu", 2), Model("convolutional", "relu", 3, residual=True)]
OTHERS = [Model("convolutional", "relu", 1), Model("convolutional", "erf", 2)]
POOLED = Model("pooled", "relu", 2)


def cells(sizes: list[int], size: int, pooled_size: int) -> list[Cell]:
    """All cells, the most telling first."""
    small, *large = sizes
    found = [Cell(model, small, orbit, size) for orbit in ("none", "learned") for model in MAIN]
    found += [Cell(model, small, "none", size) for model in CONVOLUTIONS]
    found += [Cell(MAIN[0], rows, orbit, size) for rows in large for orbit in ("none", "learned")]
    found += [Cell(CONVOLUTIONS[0], rows, "none", size) for rows in large]
    found += [Cell(CONVOLUTIONS[0], small, "learned", size)]
    found += [Cell(model, small, "none", size) for model in DENSE if model not in MAIN]
    found += [Cell(model, small, "none", pooled_size) for model in (POOLED, MAIN[0], CONVOLUTIONS[0])]
    found += [Cell(model, small, "none", size) for model in OTHERS]
    for rows in large:
        found += [Cell(POOLED, rows, "none", pooled_size)]
        found += [Cell(model, rows, orbit, size) for model in MAIN[1:] for orbit in ("none", "learned")]
        found += [Cell(model, rows, "none", size) for model in CONVOLUTIONS[1:]]
    return found
