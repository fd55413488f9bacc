"""Hyperpriors p(θ): those of GPyTorch modules, weak ones derived from the data, defaults, and checks.

A hyperprior is a distribution of the readable hyperparameter θ: of a lengthscale, not of its raw value. An
evidence needs a proper one. A prior with zero density at possible values of the parameter would block an
optimiser or a sampler, so it is refused. A prior that extends beyond the range of the parameter is truncated
and normalised. `orbitwise.inference.optimise.hyperparameters` combines them into one joint density.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import final

import numpy as np
import torch
from gpytorch.kernels import CosineKernel, PeriodicKernel
from gpytorch.means import ConstantMean
from gpytorch.module import Module
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, TransformedDistribution, Uniform, constraints

from orbitwise.functionals.points import Wrap
from orbitwise.kernels.bases import typical_spread
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits.mirrors import MirrorOrbit

DEFAULT_SCALE = 2.0
"""Deviation of the logarithm under a default hyperprior: 95 % lie within a factor of 50 of the start."""

WEAK_SCALE, WEAK_AMPLITUDE_SCALE = 1.5, 2.0
"""Deviations of logarithms under `weak_hyperpriors`: of lengths, and of amplitudes and noise variances."""


@final
class LogNormalDistance(Distribution):
    """sign·(θ - end) ~ LogNormal(location, scale²), written out because samplers evaluate it very often."""

    def __init__(self, end: Tensor, sign: float, location: Tensor, scale: float) -> None:
        super().__init__(batch_shape=location.shape, validate_args=False)
        self.end, self.sign, self.location, self.scale = end, sign, location, scale

    @property
    def arg_constraints(self) -> dict[str, constraints.Constraint]:
        """None: the arguments are not checked."""
        return {}

    @property
    def support(self) -> constraints.Constraint:
        """All values on the one side of the end."""
        side = constraints.greater_than if self.sign > 0 else constraints.less_than
        return side(self.end)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(θ)."""
        logarithm = self._logarithm(value)
        standard = (logarithm - self.location) / self.scale
        return -0.5 * standard.square() - logarithm - math.log(self.scale * math.sqrt(2 * math.pi))

    def cdf(self, value: Tensor) -> Tensor:
        """P(θ' < θ)."""
        logarithm = self._logarithm(value)
        return torch.special.ndtr(self.sign * (logarithm - self.location) / self.scale)

    def _logarithm(self, value: Tensor) -> Tensor:
        """log|θ - end|, finite even if rounding has made θ equal to the end."""
        distance = self.sign * (value - self.end)
        return distance.clamp_min(torch.finfo(distance.dtype).tiny).log()


def default_hyperprior(
    value: Tensor, low: Tensor, high: Tensor, scale: float = DEFAULT_SCALE
) -> Distribution:
    """A weak prior for a parameter between `low` and `high` that starts at `value`.

    Between two ends it is uniform; with one end, log-normal in the distance from it, with median at the start
    and `scale` as the deviation of the logarithm; without ends, normal around the start with deviation
    `scale`·max(1, |start|).
    """
    has_low, has_high = bool(low.isfinite().all()), bool(high.isfinite().all())
    if has_low and has_high:
        return Uniform(low, high, validate_args=False)
    if not has_low and not has_high:
        return Normal(value, scale * value.abs().clamp_min(1.0), validate_args=False)
    end, sign = (low, 1.0) if has_low else (high, -1.0)
    # |θ - end| ~ LogNormal(log|start - end|, scale²)
    distance = (sign * (value - end)).clamp_min(torch.finfo(value.dtype).tiny)
    return LogNormalDistance(end, sign, distance.log(), scale)


def log_prior(*modules: Module) -> Tensor | float:
    """The log density of all hyperpriors that were registered on GPyTorch modules."""
    total: Tensor | float = 0.0
    for module in modules:
        for _, owner, prior, closure, _ in module.named_priors():
            value = closure(owner)
            # `Module.to` does not move what a transformed prior, such as a log-normal one, computes with
            place = prior.base_dist.mean if isinstance(prior, TransformedDistribution) else value
            total = total + prior.log_prob(value.to(place.device)).sum().to(value)
    return total


def weak_hyperpriors(modules: Mapping[str, nn.Module], x: NDArray[np.float64]) -> dict[str, Distribution]:
    """Weak hyperpriors for everything learnable of kernels, invariances, means and noise, by parameter name.

    x are the inputs of the kernel, and targets are standardised. Positive hyperparameters have log-normal
    priors, and centres normal ones:

        lengthscales    log N(log spread of the columns, 1.5²)     of a periodic kernel: log N(0, 1.5²)
        periods         log N(log(extent/5), 1.5²)                 alpha of rq: log N(0, 1.5²)
        amplitudes      log N(log ½, 2²)                           noise: log N(log 0.05, 2²)
        centres         N(mean of the column, (1.5 spread)²)       constant mean: N(0, 1)

    They make the evidences of different structures comparable, and keep hyperparameters that the data do not
    determine from diverging. Names are those of `Hyperparameters` for the same modules.
    """
    found: dict[str, Distribution] = {}
    for prefix, root in modules.items():
        for path, module in root.named_modules(prefix=prefix):
            for attribute, parameter in module.named_parameters(recurse=False):
                if parameter.requires_grad:
                    name = f"{path}.{attribute.removeprefix('raw_')}"
                    found[name] = _weak_hyperprior(module, attribute, parameter, x)
    return found


def _weak_hyperprior(
    module: nn.Module, attribute: str, parameter: Tensor, x: NDArray[np.float64]
) -> Distribution:
    """The weak hyperprior of one parameter of one module."""

    def normal(mean: float, deviation: float) -> Distribution:
        entries = torch.full(parameter.shape, mean, dtype=torch.float64)
        return Normal(entries, torch.full_like(entries, deviation), validate_args=False)

    def log_normal(mean: float, deviation: float, end: float = 0.0) -> Distribution:
        entries = torch.full(parameter.shape, mean, dtype=torch.float64)
        return LogNormalDistance(torch.full_like(entries, end), 1.0, entries, deviation)

    if isinstance(module, Gaussian):
        return log_normal(math.log(0.05), WEAK_AMPLITUDE_SCALE, module.floor)
    if isinstance(module, ConstantMean):
        return normal(0.0, 1.0)
    if isinstance(module, MirrorOrbit):
        columns = list(module.columns or range(x.shape[1]))
        return normal(
            float(x[:, columns].mean()),
            WEAK_SCALE * float(typical_spread(torch.tensor(x[:, columns])).mean()),
        )
    if isinstance(module, Wrap):
        extent = float(np.ptp(x[:, module.column])) or 1.0
        return normal(math.log(extent / 5), WEAK_SCALE)  # of the logarithm of the period
    active = getattr(module, "active_dims", None)
    x = x if active is None else x[:, active.tolist()]
    spread = float(typical_spread(torch.tensor(x)).log().mean().exp())
    extent = float(np.ptp(x, axis=0).max()) or 1.0
    if attribute == "centre":
        return normal(float(x.mean()), WEAK_SCALE * spread)
    if attribute == "raw_lengthscale":
        is_relative = isinstance(module, PeriodicKernel)
        return log_normal(0.0 if is_relative else math.log(spread * x.shape[1] ** 0.5), WEAK_SCALE)
    if attribute == "raw_period_length":
        # GPyTorch's cosine kernel repeats after twice its period
        return log_normal(math.log(extent / (10 if isinstance(module, CosineKernel) else 5)), WEAK_SCALE)
    if attribute == "raw_variance":
        return log_normal(math.log(0.5 / (spread**2 * x.shape[1])), WEAK_AMPLITUDE_SCALE)
    if attribute in ("raw_mixture_means", "raw_mixture_scales"):
        typical = 3.0 if attribute == "raw_mixture_means" else 0.3
        return log_normal(math.log(typical / extent), WEAK_AMPLITUDE_SCALE)
    if attribute in ("raw_outputscale", "raw_constant", "raw_mixture_weights"):
        return log_normal(math.log(0.5), WEAK_AMPLITUDE_SCALE)
    return log_normal(0.0, WEAK_SCALE)


def fitting_hyperprior(
    name: str, prior: object, value: Tensor, low: Tensor, high: Tensor
) -> tuple[Distribution, float]:
    """The prior in the parameter's precision, and the logarithm of its mass between `low` and `high`.

    A ValueError explains why a prior does not suit the parameter `name`.
    """
    if not isinstance(prior, Distribution):
        raise ValueError(
            f"The hyperprior of {name} must be a gpytorch Prior or a torch Distribution, "
            f"not {type(prior).__name__}."
        )
    kind = type(prior).__name__
    if getattr(prior, "_transform", None) is not None:
        raise ValueError(
            f"The hyperprior of {name} has its own transform, so it is not a density of {name}: "
            "give a prior of the parameter itself."
        )
    if isinstance(prior, nn.Module):
        prior = copy.deepcopy(prior).to(value)
    shape = tuple(prior.batch_shape) + tuple(prior.event_shape)
    try:
        fits = tuple(torch.broadcast_shapes(shape, value.shape)) == tuple(value.shape)
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{kind} for {name} has shape {shape}, but the parameter has shape {tuple(value.shape)}: give "
            "one number for each argument of the prior, or one for every entry of the parameter."
        )
    if len(prior.event_shape):
        return prior, _joint_mass(name, prior, value, low, high)
    support_low, support_high = (
        torch.as_tensor(getattr(prior.support, name, missing), dtype=torch.float64)
        for name, missing in (("lower_bound", -math.inf), ("upper_bound", math.inf))
    )
    if bool((low < support_low).any()) or bool((high > support_high).any()):
        ends = f"{low.min().item():.4g} to {high.max().item():.4g}"
        covered = f"{support_low.max().item():.4g} to {support_high.min().item():.4g}"
        raise ValueError(
            f"{kind} for {name} has no density outside {covered}, but the parameter ranges from {ends}. "
            "Take a prior on that whole range, or constrain the parameter to the prior's support."
        )
    return prior, _log_mass(name, prior, low, high, support_low, support_high)


def nearest_name(name: str, names: list[str]) -> str:
    """The full name: the name itself, or the only one that ends with it after a dot; else a ValueError."""
    if name in names:
        return name
    ending = [each for each in names if each.endswith(f".{name}")]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise ValueError(f"{name!r} may mean {' or '.join(ending)}: give more of the name.")
    last = {each.rpartition(".")[2]: each for each in names}
    close = get_close_matches(name, [*names, *last], n=3, cutoff=0.5)
    near = list(dict.fromkeys(last.get(each, each) for each in close))
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise ValueError(f"There is no hyperparameter {name!r}.{hint} There are {', '.join(names) or 'none'}.")


def _joint_mass(name: str, prior: Distribution, value: Tensor, low: Tensor, high: Tensor) -> float:
    """Check that a joint prior of several entries has their shape and needs no truncation."""
    if tuple(value.shape) != tuple(prior.batch_shape) + tuple(prior.event_shape):
        raise ValueError(
            f"{type(prior).__name__} for {name} is a joint prior of all its entries and must have their "
            "shape "
            f"{tuple(value.shape)}."
        )
    if bool(low.isfinite().any()) or bool(high.isfinite().any()):
        raise ValueError(
            f"{type(prior).__name__} for {name} is a joint prior of several entries, which cannot be "
            "truncated to "
            "the parameter's range; give a prior of single entries."
        )
    return 0.0


def _log_mass(
    name: str, prior: Distribution, low: Tensor, high: Tensor, support_low: Tensor, support_high: Tensor
) -> float:
    """log P(low < θ < high), summed over entries."""
    cuts_low, cuts_high = bool((low > support_low).any()), bool((high < support_high).any())
    if not cuts_low and not cuts_high:
        return 0.0
    try:
        below = prior.cdf(low) if cuts_low else torch.zeros_like(low)
        above = prior.cdf(high) if cuts_high else torch.ones_like(high)
    except NotImplementedError:
        raise ValueError(
            f"{type(prior).__name__} for {name} extends beyond the parameter's range, {low.min().item():.4g} "
            f"to {high.max().item():.4g}, and its mass there is unknown: use a prior on that range."
        ) from None
    mass = (above - below).expand(low.shape)
    if not bool((mass > 0).all()):
        raise ValueError(
            f"{type(prior).__name__} for {name} has no mass in the parameter's range, {low.min().item():.4g} "
            f"to {high.max().item():.4g}."
        )
    return mass.log().sum().item()
