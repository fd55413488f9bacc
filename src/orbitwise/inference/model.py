"""What every engine takes: a latent model, and observations.

f(x) = L_x g of a Gaussian process g, and a likelihood p(y | f), to which all noise belongs. Observations may
be of other functionals of f too, with Gaussian noise of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import OMITTED, SMALLEST, Stored, is_plain_numbers, require
from orbitwise.functionals.averages import is_drawn
from orbitwise.functionals.functional import Block, Functional
from orbitwise.inference import exact
from orbitwise.inference.optimise.training import log_prior
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.process.process import Process


@final
@dataclass(frozen=True)
class Observations:
    """Observations L_n h + noise of variance σ²/w of a function h, which is g or f = L g.

    A functional, its inputs, targets [n, c] and weights, which are [n], the same for all outputs, or [n, c].
    `scatter` [n, c] is Σ w (y - ȳ)² over the rows that were merged into one, where any were.
    """

    functional: Functional
    x: Tensor
    targets: Float[Tensor, "n c"]
    weight: Float[Tensor, " n"] | Float[Tensor, "n c"] | None = None
    scatter: Float[Tensor, "n c"] | None = None

    stored = Stored({"scatter": OMITTED})

    def check_parts(self) -> None:
        """Raise a ValueError where there are no rows, or weights that are not positive."""
        require(min(*self.x.shape, *self.targets.shape) > 0, "no rows")
        positive = self.weight is None or is_plain_numbers(self.weight, SMALLEST)
        require(positive, "weights that are not positive")

    def __len__(self) -> int:
        return len(self.x)

    def weights(self) -> Float[Tensor, " n"] | Float[Tensor, "n c"]:
        """w, ones where left out."""
        return torch.ones_like(self.targets[:, 0]) if self.weight is None else self.weight

    @property
    def count(self) -> float:
        """How many rows there were before equal ones were merged: Σ w."""
        return float(len(self.targets)) if self.weight is None else float(self.weight.sum())

    @property
    def size(self) -> float:
        """The mean square of the targets, 1 where all are 0."""
        return float(self.targets.square().mean()) or 1.0

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """All data."""
        return self.x, self.targets, self.weight, self.scatter

    def to(self, device: str | torch.device) -> Observations:
        """The same on a device."""
        parts = (None if part is None else part.to(device) for part in self.tensors)
        return Observations(self.functional.to(device), *parts)  # pyright: ignore[reportArgumentType]

    def take(self, index: slice | Tensor) -> Observations:
        """Some of the rows."""
        weight, scatter = (None if part is None else part[index] for part in (self.weight, self.scatter))
        return Observations(self.functional, self.x[index], self.targets[index], weight, scatter)

    def through(self, functional: Functional) -> Observations:
        """Observations of f = L g as observations of g."""
        return replace(self, functional=self.functional @ functional)

    @property
    def num_atoms(self) -> int:
        """Atoms of a row."""
        with torch.no_grad():
            return self.take(slice(0, 1)).atoms().points.shape[-2]

    def atoms(self) -> Block:
        """The rows lowered; rows drawn at random are refused because no bound holds with them."""
        atoms = self.functional.atoms(self.x)
        if atoms.is_drawn:
            raise ValueError(
                "Collapsed bounds take exact rows: freeze a drawn orbit, orbit.freeze(num_nodes), or use the "
                "stochastic engine."
            )
        return atoms

    def merged_term(self, noise: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """What merging equal rows takes out of the log likelihood, for the noise variance σ²."""
        if self.scatter is None or self.weight is None:
            return torch.zeros_like(noise)
        if bool((self.weight == 1).all()) and not bool(self.scatter.any()):
            return torch.zeros_like(noise)
        outputs = self.targets.shape[1]
        extra = float((self.weight - 1).sum())
        constant = -0.5 * outputs * (extra * math.log(2 * math.pi) + float(self.weight.log().sum()))
        return constant - 0.5 * outputs * extra * torch.log(noise) - 0.5 * float(self.scatter.sum()) / noise

    def scatter_term(self, noise: float) -> float:
        """-S/2σ², the share of the log likelihood that is due to targets around the means of equal rows."""
        total = 0.0 if self.scatter is None else float(self.scatter.sum())
        return -0.5 * total / noise if total else 0.0


@final
class LatentModel(nn.Module):
    """A Gaussian process g, the functional L of f = L g, and the likelihood of targets given f.

    `others` are the Gaussian likelihoods of observations of other functionals of f.
    """

    def __init__(
        self,
        process: Process,
        functional: Functional,
        likelihood: Likelihood,
        others: Sequence[Gaussian] = (),
    ) -> None:
        super().__init__()
        self.process = process
        self.likelihoods = nn.ModuleList([likelihood, *others])
        self.functional = functional

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood of the targets."""
        return cast(Likelihood, self.likelihoods[0])

    @property
    def others(self) -> list[Gaussian]:
        """The likelihoods of observations of other functionals."""
        return cast("list[Gaussian]", list(self.likelihoods)[1:])

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
        """All that is learned."""
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def at(self, functional: Functional) -> LatentModel:
        """The same model with f = L g of another functional, say a frozen one; all else is shared."""
        return LatentModel(self.process, functional, self.likelihood, self.others)


@final
@dataclass(frozen=True)
class ExactEvidence:
    """The exact evidence of observations of f under Gaussian noise, plus hyperpriors.

    It is what training maximises. The functional of the model is frozen, and rows are lowered afresh at every
    call, because learnable orbits move them. The first observations have the likelihood of the model, further
    ones those of its `others`.
    """

    model: LatentModel
    observations: Sequence[Observations]
    precision: torch.dtype = torch.float64

    def rows(self) -> list[Block]:
        """The atoms of all observations."""
        functional = self.model.functional
        return [(each.functional @ functional).atoms(each.x.to(self.precision)) for each in self.observations]

    def targets(self) -> Float[Tensor, "n c"]:
        """The targets of all observations."""
        return torch.cat([each.targets for each in self.observations])

    def noise(self) -> Float[Tensor, " n"]:
        """The noise variance of every row."""
        first, *others = self.observations
        variances = zip(self.model.others, others, strict=True)
        return torch.cat(
            [
                self.model.noise / first.weights(),
                *(noise.noise.expand(len(e.targets)) for noise, e in variances),
            ]
        )

    def evidence(self) -> Float[Tensor, ""]:
        """log p(y) of all rows, those that were merged included, at the present parameters."""
        terms = exact.evidence(self.model.process, self.rows(), self.targets(), self.noise())
        return terms.value + self.observations[0].merged_term(self.model.noise)

    def posterior(self) -> exact.ExactPosterior:
        """The posterior of g at the present parameters."""
        return exact.condition(self.model.process, self.rows(), self.targets(), self.noise())

    def __call__(self) -> Float[Tensor, ""]:
        return self.evidence() + log_prior(self.model.process)
