"""Moments of rows, as likelihoods take them and posteriors give them."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Moments(NamedTuple):
    """Mean, variance and mean square of every row, one column an output; outputs may share a variance.

    In training on drawn rows each entry is an unbiased estimate, so `mean_square` is not computed from the
    other two.
    """

    mean: Float[Tensor, "n c"]
    variance: Float[Tensor, " n"] | Float[Tensor, "n c"]
    mean_square: Float[Tensor, "n c"]
