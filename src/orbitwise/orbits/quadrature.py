"""Nodes that stand for the noise of a frozen orbit: plain draws, one scrambled Sobol set, or Gauss's nodes.

Gauss–Legendre nodes integrate uniform noise and Gauss–Hermite nodes normal noise, with weights of their own,
in one or two dimensions (METHOD 4).
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from orbitwise.orbits.noise import Noise

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
    """About `num_nodes` nodes and their weights, which sum to one; only the `active` entries matter."""
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
    """The product rule with as many nodes in each active dimension as `num_nodes` allows; others are zero."""
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
