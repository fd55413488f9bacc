"""Orbits within orbits: rotations are affine maps whose other ranges are zero, and no move is all at zero.

A fit of the larger family may go on from the solution of the smaller one, so that it never ends with less
evidence than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from orbitwise.inference.coordinates import LEAST
from orbitwise.orbits.ranges import ZERO, vanishing_widths


@final
@dataclass(frozen=True)
class Start:
    """Where a fit begins: at the solution of a fitted member, on so many nodes; 0 iterations stay there."""

    member: Any
    num_nodes: int
    max_iterations: int


def may_contain(family: Any, member: Any) -> bool:
    """Whether one fitted estimator learned all the ranges of another, and more.

    It may still not contain it, because of what is fixed: only the evidence at its solution tells.
    """
    orbit, smaller = (getattr(each, "orbit_", None) for each in (family, member))
    if orbit is None or not orbit.is_drawn or not hasattr(family, "_begin_at"):
        return False
    # the default kernel of no invariance may have a lengthscale for each column
    shapes = [[each.shape for each in model.kernel_.parameters()] for model in (family, member)]
    if shapes[0] != shapes[1]:
        return False
    if smaller is None:
        return member.functional_.is_identity
    return type(smaller) is type(orbit) and set(smaller.learned()) < set(orbit.learned())


@torch.no_grad()
def adopt(modules: Sequence[nn.Module], members: Sequence[nn.Module]) -> None:
    """Take over all parameters that both have, by name; ranges that the members lack become zero."""
    for module, member in zip(modules, members, strict=True):
        known, adopted = dict(member.named_parameters()), set()
        for name, parameter in module.named_parameters():
            if name in known and known[name].shape == parameter.shape:
                parameter.copy_(known[name])
                adopted.add(id(parameter))
        for widths in vanishing_widths(module):
            flat, places = widths.parameter.view(-1), widths.places.to(widths.parameter.device)
            raw = flat[places].double().cpu()
            # orbits keep a tiny width for moves that they do not make
            is_zero = (widths.width(raw) / widths.natural).square() <= LEAST
            if id(widths.parameter) not in adopted:
                is_zero = torch.ones_like(is_zero)
            flat[places] = torch.where(is_zero, ZERO, raw).to(flat)
