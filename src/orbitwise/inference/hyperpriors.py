"""Hyperpriors that fit: their shape, their support, and the share of their mass that a parameter can reach.

An evidence needs a proper prior p(θ). A prior that leaves values of the parameter without density would stop
an optimiser or a sampler at a wall, so it is refused; one that reaches beyond the parameter is cut off there
and normalised. A parameter without a prior gets a weak one around its start.
"""

from __future__ import annotations

import copy
import math
from difflib import get_close_matches
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal, Uniform

DEFAULT_SCALE = 2.0
"""Deviation of the logarithm under a default hyperprior: 95 % lie within a factor of 50 of the start."""


@final
class LogNormalDistance(Distribution):
    """sign·(θ - end) ~ LogNormal(location, scale²), written out: samplers ask for it thousands of times."""

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, end: Tensor, sign: float, location: Tensor, scale: float) -> None:
        super().__init__(batch_shape=location.shape, validate_args=False)
        self.end, self.sign, self.location, self.scale = end, sign, location, scale

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
        """log|θ - end|, finite where rounding has put θ on the end."""
        distance = self.sign * (value - self.end)
        return distance.clamp_min(torch.finfo(distance.dtype).tiny).log()


def default_hyperprior(
    value: Tensor, low: Tensor, high: Tensor, scale: float = DEFAULT_SCALE
) -> Distribution:
    """A weak prior for a parameter that ranges from `low` to `high` and starts at `value`.

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


def fitting_hyperprior(
    name: str, prior: Any, value: Tensor, low: Tensor, high: Tensor
) -> tuple[Distribution, float]:
    """The prior in the parameter's precision, and the logarithm of its mass between `low` and `high`.

    A ValueError says why a prior does not fit the parameter `name`.
    """
    if not isinstance(prior, Distribution):
        raise ValueError(
            f"The hyperprior of {name} must be a gpytorch Prior or a torch Distribution, "
            f"not {type(prior).__name__}."
        )
    kind = type(prior).__name__
    if getattr(prior, "_transform", None) is not None:
        raise ValueError(
            f"The hyperprior of {name} has a transform of its own, so it is no density of {name}: "
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
    support_low, support_high = _support(prior)
    if bool((low < support_low).any()) or bool((high > support_high).any()):
        ends = f"{low.min().item():.4g} to {high.max().item():.4g}"
        covered = f"{support_low.max().item():.4g} to {support_high.min().item():.4g}"
        raise ValueError(
            f"{kind} for {name} has no density outside {covered}, but the parameter ranges from {ends}. "
            "Take a prior on that whole range, or constrain the parameter to the prior's support."
        )
    return prior, _log_mass(name, prior, low, high, support_low, support_high)


def nearest_name(name: str, names: list[str]) -> str:
    """The name in full: itself, or the only one that ends with it after a dot; else a helpful ValueError."""
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
    """Priors of several entries together must not need to be cut off."""
    if tuple(value.shape) != tuple(prior.batch_shape) + tuple(prior.event_shape):
        raise ValueError(
            f"{type(prior).__name__} for {name} is a prior of all its entries together and needs their shape "
            f"{tuple(value.shape)}."
        )
    if bool(low.isfinite().any()) or bool(high.isfinite().any()):
        raise ValueError(
            f"{type(prior).__name__} for {name} is a prior of several entries, which cannot be cut off at "
            "the parameter's ends; give a prior of single entries."
        )
    return 0.0


def _support(prior: Distribution) -> tuple[Tensor, Tensor]:
    support: Any = prior.support
    ends = (
        getattr(support, name, missing)
        for name, missing in (("lower_bound", -math.inf), ("upper_bound", math.inf))
    )
    low, high = (torch.as_tensor(end, dtype=torch.float64) for end in ends)
    return low, high


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
            f"{type(prior).__name__} for {name} reaches beyond the parameter's range, {low.min().item():.4g} "
            f"to {high.max().item():.4g}, and its mass there is not known: use a prior on that range."
        ) from None
    mass = (above - below).expand(low.shape)
    if not bool((mass > 0).all()):
        raise ValueError(
            f"{type(prior).__name__} for {name} has no mass in the parameter's range, {low.min().item():.4g} "
            f"to {high.max().item():.4g}."
        )
    return mass.log().sum().item()
