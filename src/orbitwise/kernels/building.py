"""From an expression to a kernel: one amplitude for every additive component, and none that is redundant."""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel, ProductKernel, ScaleKernel

from orbitwise.kernels.bases import BASES
from orbitwise.kernels.constraints import log_positive
from orbitwise.kernels.expressions import Expression, Product, Sum, Term


def build(expression: Expression, num_dims: int | None = None, separate_lengthscales: bool = False) -> Kernel:
    """The GPyTorch kernel of an expression in double precision.

    A sum has one amplitude for each part, a product one in all: its own `ScaleKernel`, or that of the first
    factor that has one (a sum, or a kernel such as `linear`); amplitudes of the other factors stay at 1.
    """
    return _built(expression, 1.0, num_dims, separate_lengthscales)


def _built(expression: Expression, amplitude: float | None, num_dims: int | None, is_ard: bool) -> Kernel:
    """`amplitude` None asks for a kernel whose amplitude is fixed at 1."""
    if isinstance(expression, Term):
        return _leaf(expression, amplitude, num_dims, is_ard)
    if isinstance(expression, Sum):
        first, *others = expression.parts
        total = _built(first, amplitude, num_dims, is_ard)
        for part in others:
            total = total + _built(part, 1.0 if amplitude is None else amplitude, num_dims, is_ard)
        return total
    return _product(expression, amplitude, num_dims, is_ard)


def _product(expression: Product, amplitude: float | None, num_dims: int | None, is_ard: bool) -> Kernel:
    if amplitude is not None and expression.factor is not None:
        amplitude = amplitude * expression.factor
    carrier = next((i for i, part in enumerate(expression.parts) if _carries(part)), None)
    factors = [
        _built(part, amplitude if i == carrier else None, num_dims, is_ard)
        for i, part in enumerate(expression.parts)
    ]
    kernel = factors[0] if len(factors) == 1 else ProductKernel(*factors)
    return kernel if amplitude is None or carrier is not None else _scaled(kernel, amplitude)


def _carries(expression: Expression) -> bool:
    """Whether a factor can hold the amplitude of the product."""
    return BASES[expression.name].amplitude is not None if isinstance(expression, Term) else True


def _leaf(term: Term, amplitude: float | None, num_dims: int | None, is_ard: bool) -> Kernel:
    base = BASES[term.name]
    num_columns = num_dims if term.columns is None else len(term.columns)
    given = dict(term.values)
    longest = max((len(given[name]) for name in given if name not in _PER_MIXTURE), default=1)
    if num_columns is None and longest > 1:
        num_columns = longest
    is_ard = (is_ard or term.is_ard or (longest > 1 and base.takes_ard)) and base.takes_ard
    if (term.is_ard or is_ard) and num_columns is None:
        raise ValueError(f"{term.name}(ard) must know the number of columns: parse(text, num_dims=…).")
    if base.needs_width and num_columns is None:
        num_columns = 1
    kernel = base.make(num_columns, is_ard, term.option, term.columns).double()
    for name in base.hyperparameters:
        _set(kernel, name, given.get(name, (1.0,) if name in base.positive else (0.0,)), term)
    if base.amplitude is None:
        return kernel if amplitude is None else _scaled(kernel, amplitude)
    if amplitude is None:
        if term.name != "sm":
            getattr(kernel, f"raw_{base.amplitude}").requires_grad_(False)
    elif amplitude != 1.0 or term.name == "sm":
        share = amplitude if base.amplitude in given else amplitude / (term.option or 1)
        _set(
            kernel,
            base.amplitude,
            tuple((getattr(kernel, base.amplitude) * share).reshape(-1).tolist()),
            term,
        )
    return kernel


_PER_MIXTURE = ("mixture_scales", "mixture_means", "mixture_weights", "variance", "constant")


def _set(kernel: Kernel, name: str, values: tuple[float, ...], term: Term) -> None:
    is_free = name in BASES[term.name].free
    target = getattr(kernel, name if is_free else f"raw_{name}")
    if len(values) not in (1, target.numel()):
        raise ValueError(
            f"{term.name} was given {len(values)} numbers for {name}, but has {target.numel()}: "
            "one for all columns, or one for each."
        )
    value = torch.tensor(values, dtype=torch.float64).expand(target.numel()).reshape(target.shape)
    if is_free:
        kernel.initialize(**{name: value})
    else:
        setattr(kernel, name, value)


def _scaled(kernel: Kernel, amplitude: float) -> Kernel:
    scaled = ScaleKernel(kernel, outputscale_constraint=log_positive()).double()
    scaled.outputscale = torch.tensor(amplitude, dtype=torch.float64)
    return scaled
