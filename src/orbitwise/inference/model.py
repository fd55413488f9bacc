"""What every engine takes, a latent model and observations, and what it returns, the posterior of g.

The model is f(x) = L_x g for a Gaussian process g, with a likelihood p(y | f) that includes all noise. Other
functionals of f may be observed too, with their own Gaussian noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, SMALLEST, Stored, is_plain_numbers, require
from orbitwise.functionals.averages import is_drawn
from orbitwise.functionals.functional import Block, Functional
from orbitwise.inference.linear_algebra import gaussian_draws
from orbitwise.inference.processes import ALONE, Processes
from orbitwise.inference.sparse.inducing import Prior
from orbitwise.inference.stored_rows import Inputs, held_rows
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Moments, Process, Rows


@final
@dataclass(frozen=True)
class Observations:
    """Observations L_n h + noise of variance σ²/w of a function h, which is g or f = L g.

    `functional` is L, and `x` are the inputs at which it is observed. Weights are [n], the same for all
    outputs, or [n, c]. A row of weight w represents w equal rows, and its target is their mean. `scatter` [n,
    c] is Σ w (y - ȳ)² over the rows that were merged into one, if any were. Sums over all of the rows are
    shared by the `processes` of a fit, each of which has all rows; some rows that are taken are not shared.
    """

    functional: Functional
    x: Inputs
    targets: Float[Tensor, "n c"]
    weight: Float[Tensor, " n"] | Float[Tensor, "n c"] | None = None
    scatter: Float[Tensor, "n c"] | None = None
    processes: Processes = ALONE

    stored = Stored({"processes": OMITTED, "scatter": OMITTED})

    def check_parts(self) -> None:
        """Raise a ValueError if there are no rows, or weights that are not positive."""
        require(min(*self.x.shape, *self.targets.shape) > 0, "no rows")
        positive = self.weight is None or is_plain_numbers(self.weight, SMALLEST)
        require(positive, "weights that are not positive")

    def __len__(self) -> int:
        return len(self.x)

    def weights(self) -> Float[Tensor, " n"] | Float[Tensor, "n c"]:
        """The weights w, or ones if none were given."""
        return torch.ones_like(self.targets[:, 0]) if self.weight is None else self.weight

    @property
    def count(self) -> float:
        """The number of rows before equal ones were merged: Σ w."""
        return float(len(self.targets)) if self.weight is None else float(self.weight.sum())

    @property
    def size(self) -> float:
        """The mean square of the targets, or 1 if all are 0."""
        return float(self.targets.square().mean()) or 1.0

    @property
    def tensors(self) -> tuple[Inputs | None, ...]:
        """All tensors of data, or what stands for them."""
        return self.x, self.targets, self.weight, self.scatter

    def to(self, device: str | torch.device) -> Observations:
        """The same observations on a device."""
        parts = (None if part is None else part.to(device) for part in self.tensors)
        functional = self.functional.to(device)
        return Observations(functional, *parts, processes=self.processes)  # pyright: ignore[reportArgumentType]

    def take(self, index: slice | Tensor) -> Observations:
        """Some of the rows."""
        weight, scatter = (None if part is None else part[index] for part in (self.weight, self.scatter))
        return Observations(self.functional, self.x[index], self.targets[index], weight, scatter)

    def through(self, functional: Functional) -> Observations:
        """Observations of f = L g as observations of g."""
        return replace(self, functional=self.functional @ functional)

    @property
    def num_atoms(self) -> int:
        """The number of atoms per row."""
        with torch.no_grad():
            return self.take(slice(0, 1)).atoms().points.shape[-2]

    def atoms(self) -> Block:
        """The atoms of all rows; drawn rows are refused, because no collapsed bound holds for them."""
        atoms = self.functional.atoms(held_rows(self.x))
        if atoms.is_drawn:
            raise ValueError(
                "Collapsed bounds need exact rows: freeze a drawn orbit with orbit.freeze(num_nodes), or use "
                "the stochastic engine."
            )
        return atoms

    def merged_term(self, noise: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """The term that merging equal rows removes from the log likelihood, for the noise variance σ²."""
        if self.scatter is None:
            return torch.zeros_like(noise)
        # weights of 1 may be sums of smaller ones, whose targets differ
        weight, outputs = self.weights(), self.targets.shape[1]
        if bool((weight == 1).all()) and not bool(self.scatter.any()):
            return torch.zeros_like(noise)
        extra = float((weight - 1).sum())
        constant = -0.5 * outputs * (extra * math.log(2 * math.pi) + float(weight.log().sum()))
        return constant - 0.5 * outputs * extra * torch.log(noise) - 0.5 * float(self.scatter.sum()) / noise

    def scatter_term(self, noise: float) -> float:
        """-S/2σ², the part of the log likelihood due to the scatter S of targets within equal rows."""
        total = 0.0 if self.scatter is None else float(self.scatter.sum())
        return -0.5 * total / noise if total else 0.0


@final
class LatentModel(nn.Module):
    """A Gaussian process g, the functional L of f = L g, and the likelihood p(y | f) of targets given f.

    It is a module, and its `parameters()` include everything that is learned: mean and kernel of the process,
    the ranges of an orbit over which the functional averages, and the noise of the likelihood. `others` are
    the Gaussian likelihoods of observations of other functionals of f. Only the stochastic trainer takes an
    `EstimatedProcess`.
    """

    process: Process

    def __init__(
        self,
        process: Prior,
        functional: Functional,
        likelihood: Likelihood,
        others: Sequence[Gaussian] = (),
    ) -> None:
        super().__init__()
        self.process = cast("Process", process)
        self.likelihood = likelihood
        self.noises = nn.ModuleList(others)
        self.functional = functional

    @property
    def prior(self) -> Prior:
        """The process, for code that also takes an `EstimatedProcess`."""
        return self.process

    @property
    def others(self) -> list[Gaussian]:
        """The likelihoods of observations of other functionals."""
        return cast("list[Gaussian]", list(self.noises))

    @property
    def noise(self) -> Float[Tensor, ""]:
        """The one noise variance of a Gaussian likelihood."""
        if not isinstance(self.likelihood, Gaussian):
            raise ValueError(f"{type(self.likelihood).__name__} has no noise variance; use Gaussian noise.")
        return self.likelihood.noise[0]

    @property
    def is_drawn(self) -> bool:
        """Whether rows of f would be drawn at random."""
        return is_drawn(self.functional)

    @property
    def learned(self) -> list[nn.Parameter]:
        """All learned parameters."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def at(self, functional: Functional) -> LatentModel:
        """The same model with another functional L, for example a frozen one; everything else is shared."""
        return LatentModel(self.process, functional, self.likelihood, self.others)


class Posterior(ABC):
    """The posterior of g given the targets, which is Gaussian for most engines.

    Predictions are made for rows: a row is L_i g for any functional L, and rows are one block of atoms or a
    list of blocks. The posterior of every engine provides moments, the mean alone, the joint covariance and
    joint draws of rows, so that estimators need not know which engine was used.
    """

    process: Process
    """The prior of g, at the hyperparameters of the fit. Mixtures over hyperparameters have none."""
    num_outputs: int
    """The number of outputs; posteriors that can be stored have it."""
    width: int
    """The number of columns of the inputs of g; posteriors that can be stored have it."""

    def mean(
        self, functional: Functional, x: Tensor, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c"]:
        """The posterior mean of L_x g for every row of x, which costs less than all moments."""
        return self.row_mean(functional.atoms(x, generator))

    def moments(self, functional: Functional, x: Tensor, generator: torch.Generator | None = None) -> Moments:
        """The posterior moments of L_x g for every row of x."""
        return self.row_moments(functional.atoms(x, generator))

    @abstractmethod
    def row_moments(self, rows: Rows) -> Moments:
        """The posterior moments of rows of atoms."""

    def row_mean(self, rows: Rows) -> Float[Tensor, "n c"]:
        """The posterior mean alone, which for most engines costs less than the variance."""
        return self.row_moments(rows).mean

    @abstractmethod
    def covariance(self, rows: Rows) -> Float[Tensor, "*c n n"]:
        """The joint posterior covariance of rows: one matrix for all outputs, or one per output."""

    def sample(
        self, rows: Rows, num_samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "n c q"]:
        """Joint posterior draws of rows, for every output."""
        mean, covariance = self.row_mean(rows), self.covariance(rows)
        each = covariance.expand(mean.shape[1], -1, -1)
        draws = [
            gaussian_draws(m[:, None], k, num_samples, generator) for m, k in zip(mean.T, each, strict=True)
        ]
        return torch.stack(draws, dim=1)
