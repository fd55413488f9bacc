"""The noise of draws, and the nodes that replace it in a frozen orbit (METHOD 4).

Noise is uniform on [-1, 1] or normal. Nodes are plain draws, one scrambled Sobol set, or Gauss's nodes with
their own weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Density = Literal["uniform", "normal"]
Draws = Literal["random", "sobol"]

SOBOL_BITS = 30
MOST_SOBOL = 64
"""The number of entries of a draw that form Sobol sets. The others (the pixels of a random field) are plain
draws, because few points in more dimensions are not more even than these."""


@final
@dataclass(frozen=True)
class Part:
    """Some rows of a batch, `count` of `total` from `first` on, which have the draws of the whole batch."""

    first: int
    count: int
    total: int

    @classmethod
    def of(cls, rows: slice, total: int) -> Part:
        """The rows of a slice of a batch."""
        first, last, _ = rows.indices(total)
        return cls(first, last - first, total)

    @property
    def rows(self) -> slice:
        """Where the rows are in the batch."""
        return slice(self.first, self.first + self.count)

    def among(self, num_rows: int) -> tuple[int, slice]:
        """How many rows the batch has if these are `num_rows`, as many for each row, and which they are."""
        each = num_rows // self.count
        return each * self.total, slice(each * self.first, each * self.first + num_rows)


@final
@dataclass(frozen=True)
class Noise:
    """The distribution of the entries of a draw: consecutive runs of (density, count)."""

    runs: tuple[tuple[Density, int], ...] = ()

    @property
    def num_entries(self) -> int:
        """q."""
        return sum(count for _, count in self.runs)

    @property
    def is_normal(self) -> Bool[Tensor, " q"]:
        """Which entries are normal; the others are uniform."""
        return torch.tensor(
            [density == "normal" for density, count in self.runs for _ in range(count)], dtype=torch.bool
        )

    def __add__(self, other: Noise) -> Noise:
        return Noise(self.runs + other.runs)

    def draw(
        self, shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor
    ) -> Float[Tensor, "*shape q"]:
        """Independent draws on the device of the generator, converted to the type and device of `like`."""
        place = like.device if generator is None else generator.device
        parts = []
        for density, count in self.runs:
            make = torch.randn if density == "normal" else torch.rand
            part = make(*shape, count, generator=generator, device=place, dtype=like.dtype)
            parts.append(part if density == "normal" else 2 * part - 1)
        if not parts:
            return torch.zeros(*shape, 0, dtype=like.dtype, device=like.device)
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)).to(like.device)

    def sobol(
        self,
        num_rows: int,
        num_groups: int,
        count: int,
        generator: torch.Generator | None,
        like: Tensor,
        rows: slice = slice(None),
    ) -> Float[Tensor, "n s q"]:
        """`count` points for every row and group, each set scrambled independently of all others.

        Of a large batch, only those for some of the `rows` may be wanted.
        """
        first, rest = self._split(MOST_SOBOL)
        if not first.num_entries:
            return self.draw((num_rows, num_groups * count), generator, like)[rows]
        place = like.device if generator is None else generator.device
        sets = [_sobol_set(count, first.num_entries, generator, place) for _ in range(num_groups)]
        shape = (num_rows, num_groups, 1, first.num_entries)
        shift = torch.randint(2**SOBOL_BITS, shape, generator=generator, device=place)
        # a digital shift keeps a set even and makes each of its points uniform; 0.5 is the middle of a cell
        cells = (torch.stack(sets) ^ shift[rows]).flatten(1, 2)
        uniform = (cells.double() + 0.5) / 2**SOBOL_BITS
        normal = first.is_normal.to(place)
        points = torch.where(normal, torch.special.ndtri(uniform), 2 * uniform - 1).to(like)
        if not rest.num_entries:
            return points
        others = rest.draw((num_rows, num_groups * count), generator, like)[rows]
        return torch.cat([points, others], dim=-1)

    def _split(self, most: int) -> tuple[Noise, Noise]:
        """The first `most` entries, and the rest."""
        first, rest = [], []
        for density, count in self.runs:
            here = min(count, most)
            most -= here
            first += [(density, here)] if here else []
            rest += [(density, count - here)] if count > here else []
        return Noise(tuple(first)), Noise(tuple(rest))


def _sobol_set(
    count: int, num_entries: int, generator: torch.Generator | None, place: torch.device
) -> Int[Tensor, "k q"]:
    """A scrambled Sobol set in units of 2^-SOBOL_BITS; smaller sets are the first columns of larger ones."""
    seed = int(torch.randint(2**31, (), generator=generator, device=place))
    # SciPy's, because torch's own cannot be made within torch.func.jvp. Whole powers of two are balanced.
    engine = scipy.stats.qmc.Sobol(
        MOST_SOBOL, scramble=True, bits=SOBOL_BITS, rng=np.random.default_rng(seed)
    )
    points = engine.random_base2((count - 1).bit_length())[:count, :num_entries]
    return torch.from_numpy((points * 2**SOBOL_BITS).astype(np.int64)).to(place)


Rule = Literal["random", "sobol", "gauss"]
MOST_GAUSS_DIMENSIONS = 2

Nodes = tuple[Tensor, Tensor]
"""Nodes [s, q] and their weights [s]."""


def nodes_for(
    noise: Noise,
    active: Bool[Tensor, " q"],
    num_nodes: int,
    rule: Rule,
    generator: torch.Generator | None,
    like: Tensor,
) -> Nodes:
    """About `num_nodes` nodes and their weights, which sum to one; only the `active` entries move anything.

    Parameters
    ----------
    noise : Noise
        What the entries of a draw are.
    active : Tensor of shape (q,)
        Which entries move anything.
    num_nodes : int
        How many nodes; Gauss's product rule takes the largest square below it in two dimensions.
    rule : "random", "sobol" or "gauss"
        Plain draws, one scrambled Sobol set, or Gauss's nodes.
    generator : torch.Generator or None
        Where random numbers come from.
    like : Tensor
        What gives the nodes their precision and device.
    """
    if num_nodes < 1:
        raise ValueError(f"num_nodes must be at least 1, not {num_nodes}.")
    if rule == "gauss":
        nodes, weights = gauss_nodes(noise, active, num_nodes)
        return nodes.to(like), weights.to(like)
    if rule == "random":
        nodes = noise.draw((num_nodes,), generator, like)
    elif rule == "sobol":
        nodes = noise.sobol(1, 1, num_nodes, generator, like)[0]
    else:
        raise ValueError(f"Nodes are 'random', 'sobol' or 'gauss', not {rule!r}.")
    return nodes, torch.full((num_nodes,), 1 / num_nodes, dtype=like.dtype, device=like.device)


def gauss_nodes(noise: Noise, active: Bool[Tensor, " q"], num_nodes: int) -> Nodes:
    """The product rule with as many nodes per active dimension as `num_nodes` allows, zeros elsewhere."""
    places = torch.nonzero(active).flatten().tolist()
    if len(places) > MOST_GAUSS_DIMENSIONS:
        raise ValueError(
            f"Gauss nodes are for one or two dimensions, and this orbit's noise has {len(places)}: "
            "freeze it with rule='sobol'."
        )
    nodes = torch.zeros(1, noise.num_entries, dtype=torch.float64)
    weights = torch.ones(1, dtype=torch.float64)
    if not places:
        return nodes, weights
    each = num_nodes if len(places) == 1 else math.isqrt(num_nodes)
    is_normal = noise.is_normal.tolist()
    for place in places:
        at, weight = _rule(each, is_normal[place])
        nodes = nodes.repeat_interleave(each, 0)
        nodes[:, place] = at.repeat(len(weights))
        weights = (weights[:, None] * weight).flatten()
    return nodes, weights


def _rule(count: int, is_normal: bool) -> tuple[Tensor, Tensor]:
    rule = np.polynomial.hermite_e.hermegauss if is_normal else np.polynomial.legendre.leggauss
    at, weight = (torch.from_numpy(part) for part in rule(count))
    return at, weight / weight.sum()
