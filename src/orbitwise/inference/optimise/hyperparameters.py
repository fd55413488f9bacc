"""Hyperparameters as one unconstrained vector z, with readable names and values for its entries.

Their density is log p(y | θ) + log p(θ) + log|dθ/dz|.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from orbitwise.inference.linear_algebra import NOT_COMPUTABLE
from orbitwise.inference.optimise.hyperpriors import (
    DEFAULT_SCALE,
    LogNormalDistance,
    default_hyperprior,
    fitting_hyperprior,
    nearest_name,
)
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.orbits.orbit import Bounds, Widths

Modules = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


class NamedParameter(NamedTuple):
    """How a raw parameter is read: its name, its value, labels of its entries, and which entries are learned.

    `transform` maps the raw parameter to its value, entry by entry; None is the identity. `slope` is the
    derivative of the transform, if known in closed form. `moves` marks the entries that are learned; None
    means all.
    """

    name: str
    transform: Callable[[Tensor], Tensor] | None = None
    slope: Callable[[Tensor], Tensor] | None = None
    labels: Sequence[str] | None = None
    moves: Tensor | None = None


Registration = tuple[str, Distribution, Tensor]
"""A prior that a GPyTorch module registered: its name, the prior, and the tensor that it is a prior of."""


@final
@dataclass(frozen=True, eq=False)
class Part:
    """A learned parameter: the modules that hold it, how it is read, and its registered prior.

    `raw` is the unconstrained parameter that torch knows, and θ = transform(raw) its readable value, such as
    a lengthscale; `slope` is dθ/draw, if known in closed form. `index` are the entries that are learned, and
    z their raw values. `labels` name all entries.
    """

    name: str
    raw: nn.Parameter
    owners: tuple[tuple[nn.Module, str], ...]
    transform: Callable[[Tensor], Tensor] | None
    slope: Callable[[Tensor], Tensor] | None
    labels: tuple[str, ...]
    index: Tensor
    registered: Distribution | None = None

    @property
    def size(self) -> int:
        """How many of its entries are learned."""
        return len(self.index)

    @property
    def coordinate_names(self) -> list[str]:
        """A name for every entry that is learned."""
        if not self.labels:
            return [self.name]
        return [f"{self.name}[{self.labels[i]}]" for i in self.index.tolist()]

    def put(self, raw: Tensor) -> None:
        """Replace the parameter by this tensor in all modules that hold it."""
        for module, name in self.owners:
            _hold(module, name, raw)

    def raw_at(self, z: Float[Tensor, " k"]) -> Tensor:
        """The whole raw parameter, with the learned entries taken from z."""
        z = z.to(self.raw)
        if self.size == self.raw.numel():
            return z.reshape(self.raw.shape)
        return self.raw.detach().flatten().index_put((self.index,), z).reshape(self.raw.shape)

    def value(self, z: Float[Tensor, " k"] | None = None) -> Tensor:
        """θ in the shape of the parameter, or as a vector of the learned entries if some are not learned."""
        raw = self.raw.detach() if z is None else self.raw_at(z)
        value = raw if self.transform is None else self.transform(raw)
        return value if self.size == self.raw.numel() else value.flatten()[self.index]

    def value_and_slope(self, z: Float[Tensor, " k"]) -> tuple[Tensor, Float[Tensor, " k"]]:
        """θ and dθ/dz, entry by entry."""
        if self.transform is None:
            return self.value(z), torch.ones_like(z)
        if self.slope is not None:
            return self.value(z), self.slope(self.raw_at(z)).flatten()[self.index].to(z)
        with torch.enable_grad():
            free = z if z.requires_grad else z.detach().requires_grad_()
            value = self.value(free)
            (slope,) = torch.autograd.grad(value.sum(), free, create_graph=True)
        return (value, slope) if z.requires_grad else (value.detach(), slope.detach())

    def range(self) -> tuple[Tensor, Tensor]:
        """The least and the greatest value of every entry."""
        ends = [
            self.value(torch.full((self.size,), end, dtype=self.raw.dtype)) for end in (-torch.inf, torch.inf)
        ]
        return torch.minimum(*ends), torch.maximum(*ends)


def _hold(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace a parameter of a module by any tensor, so that gradients flow through it."""
    module._parameters[name] = tensor  # pyright: ignore[reportArgumentType]


def parts_of(modules: Modules, named_parameters: Mapping[str, NamedParameter]) -> list[Part]:
    """All learned parameters of the modules, each once, with different names."""
    named = _named(modules)
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    every = list(dict.fromkeys(module for _, root in named for module in root.modules()))
    for module in every:
        for name, parameter in module._parameters.items():
            owners.setdefault(id(parameter), []).append((module, name))
    registrations: list[Registration] = [
        (name, prior, closure(module))
        for module in every
        if isinstance(module, Module)
        for name, (prior, closure, _) in module._priors.items()
    ]
    parts, seen, unused = [], set(), set(named_parameters)
    for prefix, root in named:
        for dotted, parameter in root.named_parameters():
            path = f"{prefix}{dotted}"
            unused.discard(path)
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            places = tuple(owners[id(parameter)])
            known = named_parameters.get(path) or _named_parameter(path, *places[0])
            part = _part(parameter, places, known, registrations)
            if part.size:
                parts.append(part)
    if unused:
        raise ValueError(
            f"named_parameters names {sorted(unused)[0]!r}, which is not a parameter; parameters are "
            f"{', '.join(prefix + name for prefix, root in named for name, _ in root.named_parameters())}."
        )
    names = [part.name for part in parts]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ValueError(
            f"Several parameters are called {doubled[0]}: name the modules, {{'kernel': …, 'mean': …}}."
        )
    return parts


def _named(modules: Modules) -> list[tuple[str, nn.Module]]:
    if isinstance(modules, nn.Module):
        return [("", modules)]
    if isinstance(modules, Mapping):
        return [(f"{name}.", module) for name, module in modules.items()]
    return [("", module) for module in modules]


def _part(
    raw: nn.Parameter,
    owners: tuple[tuple[nn.Module, str], ...],
    named: NamedParameter,
    registrations: list[Registration],
) -> Part:
    moves = torch.ones(raw.numel(), dtype=torch.bool) if named.moves is None else named.moves.flatten()
    labels = tuple(named.labels or ())
    if not labels and raw.numel() > 1:
        labels = tuple(",".join(map(str, place)) for place in np.ndindex(*raw.squeeze().shape))
    index = moves.nonzero()[:, 0].to(raw.device)
    part = Part(named.name, raw, owners, named.transform, named.slope, labels, index)
    return replace(part, registered=_registered(part, registrations))


def _named_parameter(path: str, module: nn.Module, attribute: str) -> NamedParameter:
    """How a parameter is read, according to the module that holds it."""
    start = path[: -len(attribute)]
    if isinstance(module, Bounds):
        half = attribute == "raw_half"
        moves = module.moves if half else module.shifts
        name = "half_width" if half else "centre"
        read = _read(module, attribute, lambda: module.half_width) if half else None
        return NamedParameter(start + name, read, None, module.names, moves)
    if isinstance(module, Widths):
        return NamedParameter(
            start + "width", _read(module, attribute, lambda: module.values), None, module.names, module.moves
        )
    readable = start + attribute.removeprefix("raw_")
    if isinstance(module, Gaussian):
        return NamedParameter(readable, lambda raw: raw.exp() + module.floor, torch.exp)
    constraint = module.constraint_for_parameter_name(attribute) if isinstance(module, Module) else None
    if constraint is None or not constraint.enforced:
        return NamedParameter(readable)
    return NamedParameter(readable, constraint.transform, _slope(constraint))


def _slope(constraint: object) -> Callable[[Tensor], Tensor] | None:
    """The derivative of a constraint from below by exponentials or softplus, the most common kinds."""
    if not isinstance(constraint, GreaterThan):
        return None
    function = constraint._transform
    if function is torch.exp:
        return torch.exp
    is_softplus = isinstance(function, nn.Softplus) and (function.beta, function.threshold) == (1.0, 20.0)
    return torch.sigmoid if is_softplus else None


def _read(module: nn.Module, attribute: str, read: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
    """The value that a module computes when one of its parameters is replaced by another tensor."""

    def transform(raw: Tensor) -> Tensor:
        kept = module._parameters[attribute]
        try:
            _hold(module, attribute, raw)
            return read()
        finally:
            module._parameters[attribute] = kept

    return transform


def _registered(part: Part, registrations: list[Registration]) -> Distribution | None:
    """The prior that was registered for this parameter, if any."""
    found = []
    for name, prior, value in registrations:
        if not value.requires_grad:
            continue
        if torch.autograd.grad(value.sum(), part.raw, allow_unused=True, retain_graph=True)[0] is None:
            continue
        own = part.value()
        if value.shape != own.shape or not torch.allclose(value.detach(), own):
            raise ValueError(
                f"The prior {name} is not a prior of {part.name} itself, so its density of {part.name} is "
                "unknown: pass a hyperprior of that parameter by name."
            )
        found.append(prior)
    if len(found) > 1:
        raise ValueError(f"{part.name} has several registered priors: keep only one.")
    return found[0] if found else None


@final
class JointHyperprior:
    """The hyperpriors of several parameters as one density of their unconstrained vector z.

    log p(z) = Σ log p(θ) + log|dθ/dz|. Each parameter has its hyperprior in `given`, else the one that is
    registered for it, else `default_hyperprior` around its present value.
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
    """All learnable parameters of `modules` under their hyperpriors, as one vector z of real numbers.

    Evidences, Laplace's method and samplers of hyperparameters work on z: `log_density(z)` is the log
    posterior density up to a constant, and `constrained(z)` the readable values by name.

    `log_evidence()` is log p(y | θ) at the modules' present parameters, differentiable in them. Hyperpriors
    are those registered on GPyTorch modules; `priors` adds to them or overrides them by name, and the end of
    a name suffices if only one parameter has it. They are densities of the readable θ (lengthscales, not
    their raw values). A parameter without a hyperprior gets `default_hyperprior`, centred at its *present*
    value: construct this before training, because otherwise the data are used twice. `named_parameters`
    define the meaning of raw parameters whose modules do not.
    """

    def __init__(
        self,
        log_evidence: Callable[[], Tensor],
        modules: Modules,
        priors: Mapping[str, Distribution] | None = None,
        named_parameters: Mapping[str, NamedParameter] | None = None,
        default_scale: float = DEFAULT_SCALE,
    ) -> None:
        self._log_evidence = log_evidence
        self._parts = parts_of(modules, named_parameters or {})
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
        """Set the modules' parameters from z."""
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
            except NOT_COMPUTABLE:
                return 0.0 * vector.sum() - torch.inf
        return value.to(vector.dtype)

    def log_prior(self, vector: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """log p(θ) + log|dθ/dz|: the hyperpriors as a density of z, which integrates to one."""
        self._check_vector(vector)
        return self._hyperprior.log_density(vector)

    def log_density(self, vector: Float[Tensor, " p"]) -> Float[Tensor, ""]:
        """log p(y | θ) + log p(θ) + log|dθ/dz|: the posterior density of z, up to the factor p(y)."""
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
        """Replace the modules' parameters by other tensors within a context."""
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
        """Check that the evidence is a finite number, and depends on the parameters that are replaced."""
        vector = self.vector().requires_grad_()
        with self._exchanged(self._raws(vector)):
            value = self._log_evidence()
        if not isinstance(value, Tensor) or value.dim() != 0:
            raise ValueError(f"log_evidence must return a scalar tensor, not {value!r}.")
        if not bool(value.detach().isfinite()):
            raise ValueError(f"The log evidence is {value.item()} at the present parameters.")
        if not bool(self.log_prior(vector).detach().isfinite()):
            raise ValueError(
                f"The density of the hyperpriors is zero at the present values: {self.constrained()}."
            )
        if not value.requires_grad:
            return
        originals = [part.raw for part in self._parts]
        missed = torch.autograd.grad(value, originals, allow_unused=True)
        names = [part.name for part, slope in zip(self._parts, missed, strict=True) if slope is not None]
        if names:
            raise ValueError(
                f"log_evidence uses {', '.join(names)} through modules that were not passed: pass all of "
                "them."
            )
