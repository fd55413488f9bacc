"""Deleted features: f(x) - f(x without feature j), small where f rests on no single feature (RKHS 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from orbitwise.transforms.transform import check_rows


def deletion_pairs(
    x: Float[Tensor, "n d"],
    features: Sequence[int] | None = None,
    reference: float | Float[Tensor, " d"] = 0.0,
) -> Float[Tensor, "pairs 2 d"]:
    """(x, x with x_j set to the reference) for every row and feature, as `Difference` takes them.

    The k `features` are all of them by default and run fastest. The `reference` is what a deleted feature is
    set to: one number, or one for every feature, such as the means of x. The difference of a feature that has
    this value already is zero for every f.
    """
    check_rows(x, "deletion_pairs")
    width = x.shape[-1]
    chosen = list(range(width)) if features is None else list(features)
    if not chosen or not all(-width <= j < width for j in chosen):
        raise ValueError(f"features={chosen} must name columns of inputs of width {width}, at least one.")
    value = torch.as_tensor(reference, dtype=x.dtype, device=x.device)
    if value.shape not in ((), (width,)):
        raise ValueError(
            f"reference must be one number, or {width} numbers for inputs of width {width}, not shape "
            f"{tuple(value.shape)}."
        )
    is_deleted = torch.eye(width, dtype=torch.bool, device=x.device)[chosen]
    deleted = torch.where(is_deleted, value, x[:, None, :])
    return torch.stack([x[:, None, :].expand_as(deleted), deleted], dim=2).flatten(0, 1)
