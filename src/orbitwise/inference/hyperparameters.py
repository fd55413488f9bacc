"""Hyperparameters as one unconstrained vector z, with log p(y | θ) + log p(θ) + log|dθ/dz| as its density.

The second level of inference (Lecture 2.7): the evidence of the first level is the likelihood of θ. Kernels,
means and orbits keep their parameters where they are; for an evaluation they are exchanged for parts of z, so
the density is differentiable in z as often as the evidence is, and serves optimisers and samplers alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, Normal

from orbitwise.inference.hyperpriors import (
    DEFAULT_SCALE,
    LogNormalDistance,
    default_hyperprior,
    fitting_hyperprior,
    nearest_name,
)
from orbitwise.inference.readings import Modules, Part, Reading, parts_of


@final
class JointHyperprior:
    """The hyperpriors of several parameters as one density of their unconstrained vector z.

    log p(z) = Σ log p(θ) + log|dθ/dz|. Each parameter has the hyperprior that `given` names, the one that is
    registered for it, or `default_hyperprior` around its present value.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        given: Mapping[str, Distribution] | None = None,
        default_scale: float = DEFAULT_SCALE,
    ) -> None:
        if default_scale <= 0:
            raise ValueError(f"default_scale must be positive, not {default_scale}.")
        self.parts = list(parts)
        names = [part.name for part in self.parts]
        chosen = {part.name: part.registered for part in self.parts}
        chosen |= {nearest_name(name, names): prior for name, prior in (given or {}).items()}
        self.distributions: dict[str, Distribution] = {}
        self._others: list[tuple[slice, Part, Distribution, float]] = []
        normals, start = [], 0
        for part in self.parts:
            value, low, high = part.value(), *part.range()
            if chosen[part.name] is None:
                prior, log_mass = default_hyperprior(value, low, high, default_scale), 0.0
            else:
                prior, log_mass = fitting_hyperprior(part.name, chosen[part.name], value, low, high)
            self.distributions[part.name] = prior
            place, start = slice(start, start + part.size), start + part.size
            law = _normal_law(part, prior, low)
            if law is None:
                self._others.append((place, part, prior, log_mass))
            else:
                normals.append((torch.arange(place.start, place.stop), *law))
        self._normals = [torch.cat(each) for each in zip(*normals, strict=True)] if normals else None
        if self._normals is not None:
            # -Σ log σ - (p/2) log 2π
            self._normal_constant = -(self._normals[2] * math.sqrt(2 * math.pi)).log().sum().item()

    @property
    def dimension(self) -> int:
        """How many coordinates z has."""
        return sum(part.size for part in self.parts)

    def log_density(self, vector: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """log p(z), which integrates to one."""
        total = vector.new_zeros(())
        if self._normals is not None:
            # all coordinates that are normal at once, because this is evaluated thousands of times
            index, mean, deviation = self._normals
            z = vector if len(index) == len(vector) else vector[index]
            white = (z - mean.to(z)) / deviation.to(z)
            total = self._normal_constant - 0.5 * white.square().sum()
        for place, part, prior, log_mass in self._others:
            value, slope = part.value_and_slope(vector[place])
            total = total + prior.log_prob(value).sum().to(total) - log_mass + slope.abs().log().sum()
        return total


def _normal_law(part: Part, prior: Distribution, low: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean and deviation of z where the hyperprior is normal in it: of θ = z, or of θ = low + exp(z)."""
    if part.transform is None and isinstance(prior, Normal):
        mean, deviation = prior.loc, prior.scale
    elif isinstance(prior, LogNormalDistance) and part.slope is torch.exp and prior.sign > 0:
        if not torch.equal(prior.end.expand_as(low), low.to(prior.end)):
            return None
        mean, deviation = prior.location, torch.full_like(prior.location, prior.scale)
    else:
        return None
    return mean.expand(low.shape).reshape(-1).double(), deviation.expand(low.shape).reshape(-1).double()


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
        self._hyperprior = JointHyperprior(self._parts, priors, default_scale)
        self._check()

    @property
    def dimension(self) -> int:
        """How many coordinates z has."""
        return self._hyperprior.dimension

    @property
    def names(self) -> list[str]:
        """The name of every coordinate."""
        return [name for part in self._parts for name in part.coordinate_names]

    @property
    def priors(self) -> dict[str, Distribution]:
        """The hyperprior of every parameter, given, registered or default."""
        return self._hyperprior.distributions

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
        return self._hyperprior.log_density(vector)

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
