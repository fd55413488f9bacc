"""Orbits from any torch module that moves inputs at random; its parameters are learned."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.declarations import Stored
from orbitwise.orbits.nodes import Density, Draws, Noise
from orbitwise.orbits.orbit import DrawnOrbit, OrbitPoints, drawn_points
from orbitwise.transforms.transform import check_rows

SEEDS = 2**23


@final
class ModuleOrbit(DrawnOrbit):
    """Moves drawn by `module`: module(x, noise [n s q]) with `num_noise` given, else module(x, s, generator).

    Both return [n s d]. In the first form the noise has the given `density`, and the module is deterministic
    and treats rows and samples one by one. In the second it draws by itself, from the generator alone. Each
    group is a separate call, so that samples of one call may depend on each other. Frozen or composed, the
    second form needs a call per point, with a separate seed for every node: prefer the first.

    Parameters
    ----------
    module : torch.nn.Module
        What moves inputs; its parameters are learned with the model's.
    num_noise : int, default=None
        Entries of noise per draw; None for a module that draws by itself.
    density : "uniform" or "normal", default="normal"
        The distribution of the noise: uniform on [-1, 1], or standard normal.
    num_samples, num_groups, draws
        See `DrawnOrbit`. A module that draws by itself takes random draws only.
    """

    stored = Stored(
        never="ModuleOrbit moves inputs by a module of your own, which is code and cannot be stored; use one "
        "of Orbitwise's own orbits, or pickle the model, for yourself alone."
    )

    def __init__(
        self,
        module: nn.Module,
        num_noise: int | None = None,
        density: Density = "normal",
        num_samples: int = 32,
        num_groups: int = 2,
        draws: Draws = "random",
    ) -> None:
        super().__init__(num_samples, num_groups, draws)
        if not isinstance(module, nn.Module):
            raise TypeError(f"ModuleOrbit takes a torch.nn.Module, not {type(module).__name__}.")
        if num_noise is not None and num_noise < 1:
            raise ValueError(f"num_noise must be at least 1, not {num_noise}.")
        if density not in ("uniform", "normal"):
            raise ValueError(f"density must be 'uniform' or 'normal', not {density!r}.")
        if num_noise is None and draws == "sobol":
            raise ValueError("A module that draws by itself takes no Sobol noise: give it num_noise.")
        if num_noise is None and num_groups < 2:
            raise ValueError(
                "The samples of a module that draws by itself may depend on each other, so an unbiased "
                "estimate needs two calls: choose num_groups of 2 or more."
            )
        self.module = module
        self.takes_noise = num_noise is not None
        self.density: Density = density
        self._num_noise = num_noise

    @property
    def randomness(self) -> Noise:
        """The noise of the module, or one entry that is the seed of its draws."""
        return Noise((("uniform", 1),) if self._num_noise is None else ((self.density, self._num_noise),))

    @property
    def takes_parts(self) -> bool:
        return self.takes_noise

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        if self.takes_noise:
            return super().points(x, generator)
        check_rows(x, type(self).__name__)
        count = self.num_samples // self.num_groups
        groups = [self._checked(self.module(x, count, generator), x, count) for _ in range(self.num_groups)]
        return drawn_points(torch.cat(groups, dim=1), self.num_groups, independent=False)

    def move(self, x: Float[Tensor, "n d"], noise: Float[Tensor, "n s q"]) -> Float[Tensor, "n s e"]:
        if self.takes_noise:
            return self._checked(self.module(x, noise), x, noise.shape[1])
        rows = []
        for row, entries in zip(x.split(1), noise[..., 0].tolist(), strict=True):
            seeds = [int((entry + 1) * SEEDS) for entry in entries]
            draws = [self.module(row, 1, torch.Generator(x.device).manual_seed(seed)) for seed in seeds]
            rows.append(torch.cat([self._checked(draw, row, 1) for draw in draws], dim=1))
        return torch.cat(rows)

    def _checked(self, moved: object, x: Tensor, count: int) -> Tensor:
        """The output of the module, or a ValueError that names the module."""
        name = type(self.module).__name__
        if not isinstance(moved, Tensor) or moved.dim() != 3 or moved.shape[:2] != (len(x), count):
            found = tuple(moved.shape) if isinstance(moved, Tensor) else type(moved).__name__
            raise ValueError(
                f"The module {name} must return moved inputs [{len(x)}, {count}, d] for {count} draws of "
                f"each of {len(x)} inputs, but returned {found}."
            )
        if not bool(moved.isfinite().all()):
            raise ValueError(f"The module {name} moved inputs to NaN or infinity: its draws must be finite.")
        return moved.to(x.dtype)

    def __repr__(self) -> str:
        return f"ModuleOrbit({type(self.module).__name__}, num_samples={self.num_samples})"
