"""Mirrors with a learned centre: functions that are even or odd about a learned point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitwise.orbits.orbit import Interval, Orbit, OrbitPoints, exact_points
from orbitwise.transforms.transform import check_rows


@final
class MirrorOrbit(Orbit):
    """x and its image 2c - x in the given columns (None: in all), f(x) = ½(g(x) ± g(mirrored x)).

    The centre c is learned, one entry for each mirrored column, unless `learnable` is False. With `is_odd`, f
    is the difference, which changes its sign in the mirror and is zero at the centre.

    Parameters
    ----------
    centre : float or sequence of float, default=0.0
        Where learning of c starts: one entry for all mirrored columns, or one for each.
    columns : sequence of int, default=None
        The columns that are mirrored.
    is_odd : bool, default=False
        Whether f changes its sign in the mirror.
    learnable : bool, default=True
        Whether the centre is learned.
    """

    def __init__(
        self,
        centre: float | Sequence[float] = 0.0,
        columns: Sequence[int] | None = None,
        is_odd: bool = False,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        entries = [float(each) for each in (centre if isinstance(centre, Sequence) else [centre])]
        self.columns = None if columns is None else tuple(columns)
        if self.columns is not None:
            if not self.columns or len(set(self.columns)) < len(self.columns) or min(self.columns) < 0:
                raise ValueError(f"columns must be different numbers from 0, not {self.columns}.")
            if len(entries) not in (1, len(self.columns)):
                raise ValueError(f"{len(entries)} centres were given for {len(self.columns)} columns.")
        self.is_odd = is_odd
        start = torch.tensor(entries, dtype=torch.float64)
        if not bool(start.isfinite().all()):
            raise ValueError(f"The centre of a mirror must be finite, not {entries}.")
        self.centre = nn.Parameter(start, requires_grad=learnable)

    @property
    def size(self) -> int:
        """Two: the input and its mirror image."""
        return 2

    def points(self, x: Float[Tensor, "n d"], generator: torch.Generator | None = None) -> OrbitPoints:
        check_rows(x, type(self).__name__)
        width = x.shape[-1]
        columns = list(range(width)) if self.columns is None else list(self.columns)
        if max(columns) >= width or len(self.centre) not in (1, len(columns)):
            raise ValueError(
                f"Mirror of {len(self.centre)} centres in columns {self.columns}, not for width {width}."
            )
        is_moved = torch.zeros(width, dtype=torch.bool, device=x.device)
        is_moved[columns] = True
        # 2c in the mirrored columns, zero in the others
        twice = torch.zeros(width, dtype=x.dtype, device=x.device).masked_scatter(
            is_moved, (2 * self.centre.to(x)).expand(len(columns))[torch.tensor(columns).argsort()]
        )
        mirrored = torch.where(is_moved, twice - x, x)
        weights = x.new_tensor([0.5, -0.5 if self.is_odd else 0.5])
        return exact_points(torch.stack([x, mirrored], 1), weights)

    def learned(self) -> dict[str, Interval]:
        """The centre in every mirrored column."""
        values = self.centre.detach().tolist()
        names = range(len(values)) if self.columns is None else self.columns
        return {f"centre_{name}": (value, value) for name, value in zip(names, values, strict=False)}

    def __repr__(self) -> str:
        kind = "odd" if self.is_odd else "even"
        return f"MirrorOrbit({kind}, centre={self.centre.detach().tolist()}, columns={self.columns})"
