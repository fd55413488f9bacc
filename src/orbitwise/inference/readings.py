"""What raw parameters mean: readable names and values, which of their entries move, and where they live.

GPyTorch modules say it by constraints, orbits by their bounds and widths; a `Reading` says it of any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.module import Module
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.likelihoods.gaussian import NOISE_FLOOR, Gaussian
from orbitwise.orbits.ranges import Bounds, Widths

Modules = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]


class Reading(NamedTuple):
    """The meaning of a raw parameter: a name, its value entry by entry, labels of entries, and which move.

    `slope` is the derivative of `transform`, where it is known in closed form.
    """

    name: str
    transform: Callable[[Tensor], Tensor] | None = None
    slope: Callable[[Tensor], Tensor] | None = None
    labels: Sequence[str] | None = None
    moves: Tensor | None = None


@final
@dataclass(frozen=True, eq=False)
class Part:
    """One parameter: the modules that hold it, how it is read, and the prior registered for it, if any."""

    name: str
    raw: nn.Parameter
    owners: tuple[tuple[nn.Module, str], ...]
    transform: Callable[[Tensor], Tensor] | None
    slope: Callable[[Tensor], Tensor] | None
    labels: tuple[str, ...]
    index: Tensor
    registered: Any = None

    @property
    def size(self) -> int:
        """How many of its entries move."""
        return len(self.index)

    @property
    def coordinate_names(self) -> list[str]:
        """A name for every entry that moves."""
        if not self.labels:
            return [self.name]
        return [f"{self.name}[{self.labels[i]}]" for i in self.index.tolist()]

    def put(self, raw: Tensor) -> None:
        """Have all owners hold this tensor."""
        for module, name in self.owners:
            module._parameters[name] = raw  # pyright: ignore[reportArgumentType]

    def raw_at(self, z: Float[Tensor, " k"]) -> Tensor:
        """The whole raw parameter, with the entries that move taken from z."""
        z = z.to(self.raw)
        if self.size == self.raw.numel():
            return z.reshape(self.raw.shape)
        return self.raw.detach().flatten().index_put((self.index,), z).reshape(self.raw.shape)

    def value(self, z: Float[Tensor, " k"] | None = None) -> Tensor:
        """θ: of the parameter's shape, or a list of the entries that move where some do not."""
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


def parts_of(modules: Modules, readings: Mapping[str, Reading]) -> list[Part]:
    """All parameters of the modules that are learned, each once, with names that are all different."""
    named = _named(modules)
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for _, root in named:
        for module in root.modules():
            for name, parameter in module._parameters.items():
                places = owners.setdefault(id(parameter), [])
                if parameter is not None and not any(one is module and key == name for one, key in places):
                    places.append((module, name))
    registrations = _registrations([root for _, root in named])
    parts, seen, unused = [], set(), set(readings)
    for prefix, root in named:
        for dotted, parameter in root.named_parameters():
            path = f"{prefix}{dotted}"
            unused.discard(path)
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            places = tuple(owners[id(parameter)])
            reading = readings[path] if path in readings else _reading(path, *places[0])
            part = _part(parameter, places, reading, registrations)
            if part.size:
                parts.append(part)
    if unused:
        raise ValueError(
            f"There is no parameter {sorted(unused)[0]!r} to read; there are "
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
    reading: Reading,
    registrations: list[tuple[str, Any, Tensor]],
) -> Part:
    moves = torch.ones(raw.numel(), dtype=torch.bool) if reading.moves is None else reading.moves.flatten()
    labels = tuple(reading.labels or ())
    if not labels and raw.numel() > 1:
        shape = raw.squeeze().shape
        places = torch.cartesian_prod(*(torch.arange(size) for size in shape)).reshape(raw.numel(), -1)
        labels = tuple(",".join(map(str, place)) for place in places.tolist())
    index = moves.nonzero()[:, 0].to(raw.device)
    part = Part(reading.name, raw, owners, reading.transform, reading.slope, labels, index)
    return replace(part, registered=_registered(part, registrations))


def _reading(path: str, module: nn.Module, attribute: str) -> Reading:
    """The meaning of a parameter, as the module that holds it knows it."""
    start = path[: -len(attribute)]
    if isinstance(module, Bounds):
        half = attribute == "raw_half"
        moves = module.moves if half else module.shifts
        name = "half_width" if half else "centre"
        read = _read(module, attribute, lambda: module.half_width) if half else None
        return Reading(start + name, read, None, module.names, moves)
    if isinstance(module, Widths):
        return Reading(
            start + "width", _read(module, attribute, lambda: module.values), None, module.names, module.moves
        )
    readable = start + attribute.removeprefix("raw_")
    if isinstance(module, Gaussian):
        return Reading(readable, lambda raw: raw.exp() + NOISE_FLOOR, torch.exp)
    constraint = module.constraint_for_parameter_name(attribute) if isinstance(module, Module) else None
    if constraint is None or not constraint.enforced:
        return Reading(readable)
    return Reading(readable, constraint.transform, _slope(constraint))


def _slope(constraint: Any) -> Callable[[Tensor], Tensor] | None:
    """The derivative of a constraint from below by exponentials or softplus, which most are."""
    if not isinstance(constraint, GreaterThan):
        return None
    function = constraint._transform
    if function is torch.exp:
        return torch.exp
    is_softplus = isinstance(function, nn.Softplus) and (function.beta, function.threshold) == (1.0, 20.0)
    return torch.sigmoid if is_softplus else None


def _read(module: nn.Module, attribute: str, read: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
    """What a module makes of another tensor in the place of one of its parameters."""

    def transform(raw: Tensor) -> Tensor:
        kept = module._parameters[attribute]
        try:
            module._parameters[attribute] = raw  # pyright: ignore[reportArgumentType]
            return read()
        finally:
            module._parameters[attribute] = kept

    return transform


def _registrations(roots: Sequence[nn.Module]) -> list[tuple[str, Any, Tensor]]:
    """All priors that GPyTorch modules registered: name, prior, and what it is a prior of."""
    modules = {id(each): each for root in roots for each in root.modules() if isinstance(each, Module)}
    return [
        (name, prior, closure(module))
        for module in modules.values()
        for name, (prior, closure, _) in module._priors.items()
    ]


def _registered(part: Part, registrations: list[tuple[str, Any, Tensor]]) -> Any:
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
                f"The prior {name} is not a prior of {part.name} itself, so its density is not known: "
                "give a hyperprior of the parameter by name."
            )
        found.append(prior)
    if len(found) > 1:
        raise ValueError(f"{part.name} has several registered priors: keep one.")
    return found[0] if found else None
