"""What a spelling of a kernel means: sums and products of named base kernels, as plain data.

Two expressions are equivalent when they have the same normal form: products are multiplied out, the order of
parts does not count, and factors that leave a product as it was are dropped (rbf·rbf is an rbf, a constant
only scales).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as every_choice
from typing import final

Values = tuple[float, ...]

IDEMPOTENT = frozenset({"rbf", "matern12", "constant"})
"""Base kernels whose product with themselves is one of them again, with other hyperparameters."""


@final
@dataclass(frozen=True)
class Term:
    """A base kernel: the columns it sees (None: all), its whole-number option, and given hyperparameters.

    `is_ard` asks for one lengthscale a column.
    """

    name: str
    columns: tuple[int, ...] | None = None
    option: int | None = None
    values: tuple[tuple[str, Values], ...] = ()
    is_ard: bool = False

    @property
    def structure(self) -> Term:
        """The term without hyperparameters."""
        return Term(self.name, self.columns, self.option)

    def __str__(self) -> str:
        inside = [] if self.option is None else [str(self.option)]
        inside += ["ard"] if self.is_ard else []
        inside += [_setting(name, values) for name, values in self.values]
        columns = "" if self.columns is None else f"[{','.join(map(str, self.columns))}]"
        return self.name + columns + (f"({', '.join(inside)})" if inside else "")


@final
@dataclass(frozen=True)
class Product:
    """factor · Π parts, where the factor is the amplitude (a variance)."""

    parts: tuple[Expression, ...]
    factor: float | None = None

    def __str__(self) -> str:
        texts = [f"({part})" if isinstance(part, Sum) else str(part) for part in self.parts]
        return "*".join(([] if self.factor is None else [_number(self.factor)]) + texts)


@final
@dataclass(frozen=True)
class Sum:
    """Σ parts."""

    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))


Expression = Term | Product | Sum


def add(*parts: Expression) -> Expression:
    """The sum, with sums inside sums flattened."""
    flat = [each for part in parts for each in (part.parts if isinstance(part, Sum) else (part,))]
    return flat[0] if len(flat) == 1 else Sum(tuple(flat))


def multiply(*parts: Expression, factor: float | None = None) -> Expression:
    """The product, with products inside products flattened and their factors joined."""
    flat: list[Expression] = []
    for part in parts:
        if isinstance(part, Product):
            flat += part.parts
            if part.factor is not None:
                factor = part.factor * (1.0 if factor is None else factor)
        else:
            flat.append(part)
    return flat[0] if len(flat) == 1 and factor is None else Product(tuple(flat), factor)


def terms(expression: Expression) -> list[Term]:
    """All base kernels, from left to right."""
    if isinstance(expression, Term):
        return [expression]
    return [each for part in expression.parts for each in terms(part)]


def summands(expression: Expression) -> list[Expression]:
    """The additive components, with products of sums multiplied out."""
    if isinstance(expression, Sum):
        return [each for part in expression.parts for each in summands(part)]
    if isinstance(expression, Product):
        choices = every_choice(*(summands(part) for part in expression.parts))
        return [multiply(*choice, factor=expression.factor) for choice in choices]
    return [expression]


Form = tuple[tuple[str, ...], ...]


def normal_form(expression: Expression, num_dims: int | None = None) -> Form:
    """The structure alone: the additive components, sorted, each the sorted names of its factors.

    With `num_dims` columns, an rbf of several columns is the product of those of each (with equal
    lengthscales, or with one for each).
    """
    return tuple(sorted(_factors(part, num_dims) for part in summands(expression)))


def equivalent(left: Expression, right: Expression, num_dims: int | None = None) -> bool:
    """Whether both can describe the same kernels, by their normal forms."""
    return normal_form(left, num_dims) == normal_form(right, num_dims)


def _factors(component: Expression, num_dims: int | None) -> tuple[str, ...]:
    structures = [each for term in terms(component) for each in _columnwise(term.structure, num_dims)]
    kept = [each for each in structures if each.name not in IDEMPOTENT]
    kept += [each for each in dict.fromkeys(structures) if each.name in IDEMPOTENT - {"constant"}]
    return tuple(sorted(map(str, kept))) or ("constant",)


def _columnwise(term: Term, num_dims: int | None) -> list[Term]:
    columns = range(num_dims) if term.columns is None and num_dims is not None else term.columns
    if num_dims == 1:
        return [Term(term.name, None, term.option)]
    if term.name != "rbf" or columns is None:
        return [term]
    return [Term("rbf", (column,)) for column in columns]


def _setting(name: str, values: Values) -> str:
    text = ", ".join(map(_number, values))
    return f"{name}={text}" if len(values) == 1 else f"{name}=({text})"


def _number(value: float) -> str:
    return f"{int(value)}" if float(value).is_integer() and abs(value) < 1e15 else f"{value!r}"
