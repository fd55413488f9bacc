"""Hyperparameters by name, in the units of the data, although models see standardised targets.

A variance of f is in units of the targets squared, so it is multiplied by their squared scale. In a product
of kernels, the first factor with an amplitude carries that unit, and the amplitudes of the others have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, final

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, PolynomialKernel, ProductKernel, ScaleKernel
from jaxtyping import Float
from torch import Tensor

from orbitwise.kernels.bases import BASES, children_of, columns_of, name_of
from orbitwise.kernels.scaled_columns import ScaledColumnsKernel
from orbitwise.kernels.spelling import spell

LABELS = {
    "constant": "variance",
    "mixture_means": "frequency",
    "mixture_scales": "width of the frequency",
    "mixture_weights": "variance",
    "period_length": "period",
}
POWERS = {
    "centre": 1,
    "lengthscale": 1,
    "mixture_means": -1,
    "mixture_scales": -1,
    "offset": 2,
    "period_length": 1,
    "variance": -2,
}
"""The power of the unit of the inputs in a hyperparameter; that of others, such as alpha, is 0."""
WITHOUT_UNIT = {("periodic", "lengthscale")}
SIGNS = {0.5: "^½", 1: "", 2: "²", 3: "³", 4: "⁴"}


@final
class Hyperparameter(NamedTuple):
    """A hyperparameter with its values, one for each output or component, and its unit.

    The unit is written with the names of columns and with y for the targets, as "y²" or "1/age". It is "" for
    plain numbers, and for kernels that say nothing of it.
    """

    name: str
    values: tuple[float, ...]
    unit: str


def names_of_columns(names: Sequence[str] | None, count: int) -> list[str]:
    """The names of the columns as given; without any, x, or x0, x1, …"""
    if names is not None:
        return [str(name) for name in names]
    return numbered("x", count)


def numbered(letter: str, count: int) -> list[str]:
    """x alone, or x0, x1, …"""
    return [letter] if count == 1 else [f"{letter}{i}" for i in range(count)]


def hyperparameters_of(
    kernel: Kernel, columns: Sequence[str], target: str, scale: Float[Tensor, " c"], inputs: str = "x"
) -> list[Hyperparameter]:
    """The hyperparameters of a kernel, by names that tell them apart.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        The kernel of g, for standardised targets.
    columns : sequence of str
        Names of the columns that the kernel sees.
    target : str
        The unit of f.
    scale : Tensor of shape (c,)
        What standardised outputs were divided by.
    inputs : str, default="x"
        The unit of what several columns share.
    """
    found = list(_Walk(columns, target, scale.detach().double().cpu(), inputs).through(kernel, True))
    is_alone = len({each.kernel for each in found}) == 1
    met: Counter[str] = Counter()
    rows = []
    for each in found:
        name = each.label if is_alone else f"{each.label} of {each.kernel}"
        name += f", {each.column}" if each.column else ""
        met[name] += 1
        name += f" ({met[name]})" if met[name] > 1 else ""
        rows.append(Hyperparameter(name, tuple(each.value.reshape(-1).tolist()), each.unit))
    return rows


def noise_parts(variances: Sequence[float], target: str) -> list[Hyperparameter]:
    """The variance of the noise, of one output or each, with its standard deviation."""
    return [
        Hyperparameter("noise variance", tuple(variances), _unit({target: 2})),
        Hyperparameter("noise standard deviation", tuple(each**0.5 for each in variances), target),
    ]


class _Found(NamedTuple):
    """A hyperparameter of one kernel, of all its columns together or of one."""

    label: str
    kernel: str
    column: str
    value: Tensor
    unit: str


@final
class _Walk(NamedTuple):
    """A walk through a kernel, which sees these columns."""

    columns: Sequence[str]
    target: str
    scale: Tensor
    inputs: str

    def through(self, kernel: Kernel, has_unit: bool, units: Tensor | None = None) -> Iterator[_Found]:
        """All hyperparameters, for columns in `units`; `has_unit` tells variances of f from mere factors."""
        if isinstance(kernel, ScaledColumnsKernel):
            yield from self.through(kernel.base_kernel, has_unit, kernel.units.detach().cpu())
        elif isinstance(kernel, ScaleKernel):
            yield self._amplitude(kernel.base_kernel, has_unit, kernel.outputscale)
            yield from self.through(kernel.base_kernel, False, units)
        elif isinstance(kernel, AdditiveKernel):
            for part in children_of(kernel):
                yield from self.through(part, has_unit, units)
        else:
            parts = children_of(kernel) if isinstance(kernel, ProductKernel) else [kernel]
            carrier = next((part for part in parts if _has_amplitude(part)), None)
            if has_unit and carrier is None:
                yield self._amplitude(kernel, True, torch.ones(1))
            if isinstance(kernel, ProductKernel):
                for part in parts:
                    yield from self.through(part, has_unit and part is carrier, units)
            else:
                yield from self._base(kernel, has_unit, units)

    def _amplitude(self, kernel: Kernel, has_unit: bool, value: Tensor) -> _Found:
        """What a kernel without an amplitude of its own is multiplied by."""
        unit = {self.target: 2.0 * has_unit, self._shared(self.columns): -2.0 * _degree(kernel)}
        label, value = "variance" if has_unit else "factor", self._scaled(value, 2.0 * has_unit)
        return _Found(label, name_in(kernel, self.columns), "", value, _unit(unit))

    def _base(self, kernel: Kernel, has_unit: bool, units: Tensor | None) -> Iterator[_Found]:
        """The hyperparameters of a base kernel, or of one that is not in the table."""
        name = _base_name(kernel)
        if name is None:
            for each, raw, constraint in kernel.named_parameters_and_constraints():
                value = raw if constraint is None else constraint.transform(raw)
                yield _Found(each.replace("raw_", ""), type(kernel).__name__, "", value, "")
            return
        seen, kernel_name = _seen(kernel, self.columns), name_in(kernel, self.columns)
        for each in BASES[name].hyperparameters:
            value = getattr(kernel, each).detach().double().cpu()
            power = 0 if (name, each) in WITHOUT_UNIT else POWERS.get(each, 0)
            label, of_target = LABELS.get(each, each), 0.0
            if each == BASES[name].amplitude:
                # mixtures of several columns are multiplied, all with the same weights
                of_target = 2.0 * has_unit / (len(seen) if name == "sm" else 1)
                value = self._scaled(value, of_target)
                label = "variance of the slope" if each == "variance" else label
            elif units is not None and power:
                value = value * units**power
            if abs(power) == 1 and value.shape[-1] == len(seen) > 1:
                for column, part in zip(seen, value.reshape(-1, len(seen)).T, strict=True):
                    yield _Found(label, kernel_name, column, part, _unit({column: power}))
            else:
                unit = _unit({self.target: of_target, self._shared(seen): power})
                yield _Found(label, kernel_name, "", value, unit)

    def _scaled(self, value: Tensor, power: float) -> Tensor:
        """A standardised value, for every output, in units of the targets to a power."""
        factors = self.scale**power if power else torch.ones(1, dtype=torch.float64)
        return value.detach().double().cpu().reshape(-1, 1) * factors

    def _shared(self, columns: Sequence[str]) -> str:
        """The unit of what these columns share."""
        return columns[0] if len(columns) == 1 else self.inputs


def kernel_text(kernel: Kernel) -> str:
    """The spelling of a kernel; for one without a spelling, its parts by name."""
    try:
        return spell(kernel)
    except ValueError:
        return name_in(kernel, None)


def name_in(kernel: Kernel, columns: Sequence[str] | None) -> str:
    """What a kernel of named or numbered columns is called, such as rbf[age]*periodic."""
    if isinstance(kernel, ScaleKernel | ScaledColumnsKernel):
        return name_in(kernel.base_kernel, columns)
    if isinstance(kernel, AdditiveKernel):
        return f"({' + '.join(name_in(part, columns) for part in children_of(kernel))})"
    if isinstance(kernel, ProductKernel):
        return "*".join(name_in(part, columns) for part in children_of(kernel))
    name = _base_name(kernel) or type(kernel).__name__
    return name if columns_of(kernel) is None else f"{name}[{', '.join(_seen(kernel, columns))}]"


def _seen(kernel: Kernel, columns: Sequence[str] | None) -> list[str]:
    """The names, or the numbers, of the columns that a kernel sees."""
    seen = columns_of(kernel)
    if columns is None:
        return [str(i) for i in seen or ()]
    return list(columns) if seen is None else [columns[i] for i in seen]


def _base_name(kernel: Kernel) -> str | None:
    """The name of a base kernel; None for others."""
    try:
        return name_of(kernel)[0]
    except ValueError:
        return None


def _has_amplitude(kernel: Kernel) -> bool:
    """Whether a kernel has a hyperparameter that scales it."""
    if isinstance(kernel, ScaledColumnsKernel):
        return _has_amplitude(kernel.base_kernel)
    if isinstance(kernel, ScaleKernel | AdditiveKernel):
        return True
    if isinstance(kernel, ProductKernel):
        return any(map(_has_amplitude, children_of(kernel)))
    name = _base_name(kernel)
    return name is not None and BASES[name].amplitude is not None


def _degree(kernel: Kernel) -> int:
    """The degree of the polynomials in a kernel, which is in units of the inputs to twice that power."""
    if isinstance(kernel, ProductKernel):
        return sum(map(_degree, children_of(kernel)))
    return int(kernel.power) if isinstance(kernel, PolynomialKernel) else 0


def _unit(powers: dict[str, float]) -> str:
    """A product of powers as text, such as y²/x²."""
    above = [name + _sign(power) for name, power in powers.items() if power > 0]
    below = [name + _sign(-power) for name, power in powers.items() if power < 0]
    return "·".join(above or ["1"] * bool(below)) + "".join(f"/{each}" for each in below)


def _sign(power: float) -> str:
    return SIGNS.get(power, f"^{power:.3g}")
