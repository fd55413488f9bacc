"""Hyperparameters as one unconstrained vector z, with log p(y | θ) + log p(θ) + log|dθ/dz| as its density.

The second level of inference (Lecture 2.7): the evidence of the first level is the likelihood of θ. Kernels,
means and orbits keep their parameters where they are; for an evaluation they are exchanged for parts of z, so
the density is differentiable in z as often as the evidence is, and serves optimisers and samplers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution

from orbitwise.inference.hyperpriors import (
    DEFAULT_SCALE,
    default_hyperprior,
    fitting_hyperprior,
    nearest_name,
)
from orbitwise.inference.readings import Reading, parts_of

Modules = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


@final
class Hyperparameters:
    """All learnable parameters of `modules` under their hyperpriors.

    `log_evidence()` is log p(y | θ) at the modules' present parameters, differentiable in them. Hyperpriors
    are those registered on GPyTorch modules, which `priors` adds to or overrides by name; a name's end is
    enough where only one parameter has it. They are densities of the readable θ (lengthscales, not their raw
    values). A parameter without any gets `default_hyperprior`, centred where the parameter is *now*: build
    this before training, or the data count twice. `readings` say what raw parameters mean where modules do
    not.
    """

    def __init__(
        self,
        log_evidence: Callable[[], Tensor],
        modules: Modules,
        priors: Mapping[str, Distribution] | None = None,
        readings: Mapping[str, Reading] | None = None,
        default_scale: float = DEFAULT_SCALE,
    ) -> None:
        self._log_evidence = log_evidence
        self._parts = parts_of(modules, readings or {})
        if default_scale <= 0:
            raise ValueError(f"default_scale must be positive, not {default_scale}.")
        given = {part.name: part.registered for part in self._parts}
        own = [part.name for part in self._parts]
        for name, prior in (priors or {}).items():
            given[nearest_name(name, own)] = prior
        self._priors: list[tuple[Distribution, float]] = []
        for part in self._parts:
            value, low, high = part.value(), *part.range()
            if given[part.name] is None:
                self._priors.append((default_hyperprior(value, low, high, default_scale), 0.0))
            else:
                self._priors.append(fitting_hyperprior(part.name, given[part.name], value, low, high))
        self._check()

    @property
    def dimension(self) -> int:
        """How many coordinates z has."""
        return sum(part.size for part in self._parts)

    @property
    def names(self) -> list[str]:
        """The name of every coordinate."""
        return [name for part in self._parts for name in part.coordinate_names]

    @property
    def priors(self) -> dict[str, Distribution]:
        """The hyperprior of every parameter, given, registered or default."""
        return {part.name: prior for part, (prior, _) in zip(self._parts, self._priors, strict=True)}

    def vector(self) -> Float[Tensor, " p"]:
        """z at the present parameters."""
        parts = [part.raw.detach().flatten()[part.index] for part in self._parts]
        kind = (
            torch.float32 if all(part.dtype == torch.float32 for part in parts) and parts else torch.float64
        )
        return torch.cat([*(part.to(kind) for part in parts), torch.zeros(0, dtype=kind)])

    @torch.no_grad()
    def set(self, vector: Float[Tensor, " p"]) -> None:
        """Put the modules' parameters where z says."""
        self._check_vector(vector)
        if not bool(vector.isfinite().all()):
            raise ValueError("The vector has NaN or infinite entries.")
        for part, raw in zip(self._parts, self._raws(vector), strict=True):
            part.raw.copy_(raw)

    def constrained(self, vector: Float[Tensor, " p"] | None = None) -> dict[str, Tensor]:
        """θ, by the parameters' names, at z or at the present parameters."""
        vector = self.vector() if vector is None else vector
        self._check_vector(vector)
        with torch.no_grad():
            return {
                part.name: part.value(z) for part, z in zip(self._parts, self._split(vector), strict=True)
            }

    def log_likelihood(self, vector: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """log p(y | θ) at z; minus infinity where it cannot be computed."""
        self._check_vector(vector)
        with self._exchanged(self._raws(vector)):
            try:
                value = self._log_evidence()
            except (ValueError, torch.linalg.LinAlgError):  # pyright: ignore[reportPrivateImportUsage]
                return 0.0 * vector.sum() - torch.inf
        return value.to(vector.dtype)

    def log_prior(self, vector: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """log p(θ) + log|dθ/dz|: the hyperpriors as a density of z, which integrates to one."""
        self._check_vector(vector)
        total = vector.new_zeros(())
        for part, (prior, mass), z in zip(self._parts, self._priors, self._split(vector), strict=True):
            value, slope = part.value_and_slope(z)
            total = total + prior.log_prob(value).sum().to(total) - mass + slope.abs().log().sum()
        return total

    def log_density(self, vector: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """log p(y | θ) + log p(θ) + log|dθ/dz|: z's posterior density, but for the evidence p(y)."""
        prior = self.log_prior(vector)
        value = self.log_likelihood(vector) if bool(prior.detach().isfinite()) else prior
        if not bool(value.detach().isfinite()):
            return 0.0 * vector.sum() - torch.inf
        return value + prior

    def _split(self, vector: Tensor) -> Sequence[Tensor]:
        return vector.split([part.size for part in self._parts])

    def _raws(self, vector: Tensor) -> list[Tensor]:
        return [part.raw_at(z) for part, z in zip(self._parts, self._split(vector), strict=True)]

    @contextmanager
    def _exchanged(self, raws: Sequence[Tensor]) -> Iterator[None]:
        """The modules with other tensors in the place of their parameters."""
        try:
            for part, raw in zip(self._parts, raws, strict=True):
                part.put(raw)
            yield
        finally:
            for part in self._parts:
                part.put(part.raw)

    def _check_vector(self, vector: Tensor) -> None:
        if vector.shape != (self.dimension,):
            raise ValueError(
                f"There are {self.dimension} hyperparameters, but the vector has shape {tuple(vector.shape)}."
            )

    def _check(self) -> None:
        """The evidence is a finite number, and follows the parameters that are exchanged."""
        vector = self.vector().requires_grad_()
        with self._exchanged(self._raws(vector)):
            value: Any = self._log_evidence()
        if not isinstance(value, Tensor) or value.dim() != 0:
            raise ValueError(f"log_evidence must return a scalar tensor, not {value!r}.")
        if not bool(value.detach().isfinite()):
            raise ValueError(f"The log evidence is {value.item()} at the present parameters.")
        if not bool(self.log_prior(vector).detach().isfinite()):
            raise ValueError(f"The hyperpriors give no density to the present values: {self.constrained()}.")
        if not value.requires_grad:
            return
        originals = [part.raw for part in self._parts]
        missed = torch.autograd.grad(value, originals, allow_unused=True)
        names = [part.name for part, slope in zip(self._parts, missed, strict=True) if slope is not None]
        if names:
            raise ValueError(
                f"log_evidence uses {', '.join(names)} through modules that were not given: give all of them."
            )
