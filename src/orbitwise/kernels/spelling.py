"""A readable spelling of kernels: `parse("rbf*periodic + rq + linear")` and its inverse, `spell`.

    sum      product + product + …
    product  factor * factor * …        a number among the factors is the amplitude, a variance
    factor   name, (sum), number, each with ^2 or another whole power; a lone number is a constant kernel
    name     rbf   rbf[0,2]   rbf(lengthscale=2)   rbf(ard)   sm(4)   rbf(dims=0,2)

Square brackets choose columns. Amplitudes are learned, one for every product.
"""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from orbitwise.kernels.bases import BASES, name_of
from orbitwise.kernels.building import build
from orbitwise.kernels.expressions import Expression, Term, add, multiply
from orbitwise.kernels.parser import Parser


def parse(
    text: str,
    num_dims: int | None = None,
    *,
    separate_lengthscales: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Kernel:
    """The GPyTorch kernel that a spelling stands for, every positive hyperparameter held as its logarithm.

    `num_dims` is the number of columns of the inputs; it is needed by kernels with one hyperparameter a
    column, and columns are checked against it. `separate_lengthscales` writes `ard` into every base kernel.
    Hyperparameters start at 1 where the text gives none; `orbitwise.kernels.start` sets them from data.
    """
    if num_dims is not None and (isinstance(num_dims, bool) or num_dims < 1):
        raise ValueError(f"num_dims must be a whole number of at least 1, or None, not {num_dims!r}.")
    expression = parse_expression(text, num_dims)
    return build(expression, num_dims, separate_lengthscales).to(dtype)


def parse_expression(text: str, num_dims: int | None = None) -> Expression:
    """The sums and products that a spelling stands for, as plain data."""
    if not isinstance(text, str):
        raise TypeError(
            f"A kernel is spelled in a str, such as 'rbf*periodic + rq', not {type(text).__name__}."
        )
    return Parser(text, num_dims).whole()


def spell(kernel: Kernel, values: bool = False, digits: int = 6) -> str:
    """The spelling of a kernel made of base kernels, sums, products and scales; the inverse of `parse`.

    With `values`, hyperparameters and amplitudes are written too, to `digits` digits.
    """
    return str(expression_of(kernel, values, digits))


def expression_of(kernel: Any, values: bool = False, digits: int = 6) -> Expression:
    """The sums and products that a kernel is made of."""
    if len(kernel.batch_shape):
        raise ValueError(
            f"A kernel of batch shape {tuple(kernel.batch_shape)} has no spelling; spell one by one."
        )
    if type(kernel) is ScaleKernel:
        inner = expression_of(kernel.base_kernel, values, digits)
        return multiply(inner, factor=_rounded(kernel.outputscale, digits)[0]) if values else inner
    if type(kernel) is AdditiveKernel or type(kernel) is ProductKernel:
        parts = [expression_of(part, values, digits) for part in kernel.kernels]  # pyright: ignore
        return add(*parts) if type(kernel) is AdditiveKernel else multiply(*parts)
    name, option = name_of(kernel)
    base = BASES[name]
    columns = None if kernel.active_dims is None else tuple(kernel.active_dims.tolist())
    is_ard = base.takes_ard and not base.needs_width and (kernel.ard_num_dims or 1) > 1
    given = [(each, _rounded(getattr(kernel, each), digits)) for each in base.hyperparameters]
    return Term(name, columns, option, tuple(given) if values else (), is_ard)


def _rounded(tensor: Tensor, digits: int) -> tuple[float, ...]:
    return tuple(float(f"{value:.{digits}g}") for value in tensor.detach().double().reshape(-1).tolist())
