"""Compositions of orbits: each stage moves the points of the one before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from orbitwise.orbits.certainty import Unit
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.nodes import Draws, Nodes, Noise
from orbitwise.orbits.orbit import DrawnOrbit, FrozenOrbit, Interval, Orbit

ELEMENT = Noise((("uniform", 1),))


@final
class ComposedOrbit(DrawnOrbit):
    """x moved by the first stage, then by the second, and so on; a draw passes through all stages once.

    Stages may be any orbits. Each draw takes a random element of a finite stage, all equally likely. When the
    composition is frozen, every node is combined with all elements of exact finite stages, so a composition
    of exact stages alone freezes to the exact average over all products of their elements.

    Parameters
    ----------
    *stages : Orbit
        What moves a row first, second, and so on; a composition among them is replaced by its stages.
    num_samples, num_groups, draws
        See `DrawnOrbit`. Those of the stages are not used.
    """

    def __init__(
        self, *stages: Orbit, num_samples: int = 32, num_groups: int = 2, draws: Draws = "random"
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        if not stages:
            raise ValueError("ComposedOrbit needs at least one stage.")
        for stage in stages:
            if not isinstance(stage, Orbit):
                raise TypeError(f"The stages of a ComposedOrbit are orbits, not {type(stage).__name__}.")
        # nested compositions are flattened, so that freezing sees all exact stages
        parts = [list(stage.stages) if isinstance(stage, ComposedOrbit) else [stage] for stage in stages]
        self.stages = nn.ModuleList(stage for part in parts for stage in part)

    @property
    def is_smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether all stages that are drawn are smooth; draws from a finite stage are not."""
        drawn = [stage for stage in self._orbits() if stage.is_drawn]
        return all(isinstance(stage, DrawnOrbit) and stage.is_smooth for stage in drawn)

    @property
    def randomness(self) -> Noise:
        """The noise of all stages in order; a finite stage has one entry for its element."""
        return sum((_noise_of(stage) for stage in self._orbits()), Noise())

    @property
    def active(self) -> Bool[Tensor, " q"]:
        parts = [
            stage.active if isinstance(stage, DrawnOrbit) else torch.tensor([stage.is_drawn])
            for stage in self._orbits()
        ]
        return torch.cat(parts)

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s e"]:
        return self.move_and_weigh(x, noise)[0]

    def move_and_weigh(
        self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]
    ) -> tuple[Float[Tensor, "n s e"], Float[Tensor, "n s"] | None]:
        count, samples, _ = noise.shape
        stages = self._orbits()
        parts = noise.split([_noise_of(stage).num_entries for stage in stages], dim=-1)
        moved, total = x, None
        for place, (stage, part) in enumerate(zip(stages, parts, strict=True)):
            # after the first stage every draw is a separate row
            rows = part if place == 0 else part.reshape(count * samples, 1, -1)
            moved, factors = _pass(stage, moved, rows)
            moved = moved.reshape(count * samples, -1)
            if factors is not None:
                factors = factors.reshape(count, samples)
                total = factors if total is None else total * factors
        return moved.reshape(count, samples, -1), total

    def complete(self, nodes: Nodes) -> Nodes:
        """Every node combined with all elements of the exact stages."""
        at, weights = nodes
        if not any(stage.is_drawn for stage in self._orbits()):
            at, weights = at[:1], torch.ones_like(weights[:1])
        elif len(weights.unique()) > 1 and any(
            stage.is_drawn and not isinstance(stage, DrawnOrbit) for stage in self._orbits()
        ):
            raise ValueError(
                "Gauss nodes cannot choose elements of a finite stage: leave out its num_samples, so that "
                "all its elements are taken."
            )
        column = 0
        for stage in self._orbits():
            if not stage.is_drawn:
                size = stage.size or 1
                # the middles of the cells that _choice reads
                middles = ((2 * torch.arange(size, dtype=torch.float64) + 1) / size - 1).to(at)
                at = at.repeat_interleave(size, 0)
                at[:, column] = middles.repeat(len(weights))
                weights = weights.repeat_interleave(size) / size
            column += _noise_of(stage).num_entries
        return at, weights

    def learned(self) -> dict[str, Interval]:
        """The learned ranges of all stages; a repeated name is followed by the number of its stage."""
        ranges: dict[str, Interval] = {}
        for place, stage in enumerate(self._orbits()):
            for name, interval in stage.learned().items():
                ranges[f"{name}_{place + 1}" if name in ranges else name] = interval
        return ranges

    def units(self) -> Mapping[str, Unit]:
        known: dict[str, Unit] = {}
        for place, stage in enumerate(self._orbits()):
            for name, unit in stage.units().items():
                known.setdefault(name, unit)
                known[f"{name}_{place + 1}"] = unit
        return known

    def _orbits(self) -> list[Orbit]:
        return [stage for stage in self.stages if isinstance(stage, Orbit)]


def _noise_of(stage: Orbit) -> Noise:
    return stage.randomness if isinstance(stage, DrawnOrbit) else ELEMENT


def _pass(
    stage: Orbit, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]
) -> tuple[Float[Tensor, "n s e"], Float[Tensor, "n s"] | None]:
    """Rows moved by one stage, with factors for their weights if it has any."""
    if isinstance(stage, DrawnOrbit):
        return stage.move_and_weigh(x, noise)
    if stage.size is None:
        raise ValueError(f"{type(stage).__name__} is neither finite nor a DrawnOrbit: it cannot be composed.")
    chosen = ((noise[..., 0] + 1) * (stage.size / 2)).floor().long().clamp(0, stage.size - 1)
    if isinstance(stage, FiniteOrbit):
        elements = stage.elements
        alpha = chosen[..., None] if elements is None else elements.to(x.device)[chosen]
        return stage.transform(x, alpha), None if stage.weights is None else stage.weights.to(x)[chosen]
    if isinstance(stage, FrozenOrbit):
        moved, factors = stage.source.move_and_weigh(x, stage.nodes.to(x)[chosen])
        weights = stage.weights.to(x)[chosen] * stage.size
        return moved, weights if factors is None else weights * factors
    # any other exact orbit: all its elements, of which one is kept
    exact = stage.points(x)
    places = chosen[..., None].expand(-1, -1, exact.points.shape[-1])
    return exact.points.gather(1, places), exact.weights.gather(1, chosen) * stage.size
