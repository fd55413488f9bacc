"""A readable spelling of kernels: `parse("rbf*periodic + rq + linear")` and its inverse, `spell`.

A recursive-descent parser turns text into expressions: plain data of sums and products of named base kernels.
Kernels built from them have one amplitude per additive component, and no redundant ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import product as every_choice
from typing import NamedTuple, final

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from orbitwise.kernels.bases import (
    ALIASES,
    BASES,
    Base,
    Option,
    children_of,
    columns_of,
    log_positive,
    name_of,
)

TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)|(?P<mark>\*\*|[-+*^(),=\[\]]))"
)
SIGN = re.compile(r"\s*(?P<mark>[-+])")


@final
class SpellingError(ValueError):
    """Text that does not spell a kernel; `position` is that of the error, counted from 0."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        line = re.sub(r"\s", " ", text)
        super().__init__(f"{problem}\n    {line}\n    {' ' * position}^ here, at position {position}")
        self.position = position


class Token(NamedTuple):
    """A number, a name, a mark or the end, with its place in the text."""

    kind: str
    text: str
    position: int


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text and an end; a SpellingError at the first character that has no meaning."""
    found: list[Token] = []
    position, length = 0, len(text.rstrip())
    while position < length:
        match = TOKEN.match(text, position)
        if match is None:
            start = position + len(text[position:]) - len(text[position:].lstrip())
            raise SpellingError(text, start, f"The character {text[start]!r} has no meaning here.")
        kind = match.lastgroup or ""
        # "rbf +2" adds 2: a sign after a factor belongs to no number.
        is_after_factor = bool(found) and (found[-1].kind != "mark" or found[-1].text in ")]")
        if kind == "number" and is_after_factor and (sign := SIGN.match(text, position)) is not None:
            match, kind = sign, "mark"
        found.append(Token(kind, match[kind], match.start(kind)))
        position = match.end()
    return [*found, Token("end", "the end", length)]


Values = tuple[float, ...]

IDEMPOTENT = frozenset({"rbf", "matern12", "constant"})
"""Base kernels whose product with themselves is of the same kind, with other hyperparameters."""


@final
@dataclass(frozen=True)
class Term:
    """A base kernel: the columns it sees (None: all), its whole-number option, and given hyperparameters.

    `is_ard` asks for one lengthscale per column.
    """

    name: str
    columns: tuple[int, ...] | None = None
    option: int | None = None
    values: tuple[tuple[str, Values], ...] = ()
    is_ard: bool = False

    @property
    def structure(self) -> Term:
        """The term without hyperparameters."""
        return replace(self, values=())

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

    def with_parts(self, parts: Iterable[Expression]) -> Expression:
        """The product of other parts, with the same factor."""
        return multiply(*parts, factor=self.factor)

    def __str__(self) -> str:
        texts = [f"({part})" if isinstance(part, Sum) else str(part) for part in self.parts]
        return "*".join(([] if self.factor is None else [_number(self.factor)]) + texts)


@final
@dataclass(frozen=True)
class Sum:
    """Σ parts."""

    parts: tuple[Expression, ...]

    def with_parts(self, parts: Iterable[Expression]) -> Expression:
        """The sum of other parts."""
        return add(*parts)

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


def map_terms(expression: Expression, change: Callable[[Term], Expression]) -> Expression:
    """The expression with every base kernel replaced by `change` of it, from left to right."""
    if isinstance(expression, Term):
        return change(expression)
    return expression.with_parts([map_terms(part, change) for part in expression.parts])


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


COLUMNS = ("columns", "dims")
SHORTER = {"center": "centre", "length": "lengthscale", "period": "period_length"}
LARGEST_POWER = 8
DEEPEST = 50


@final
class Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, num_dims: int | None) -> None:
        self.text, self.num_dims, self.place, self.depth = text, num_dims, 0, 0
        self.tokens = tokens_of(text)

    def whole(self) -> Expression:
        """The expression of the whole text."""
        if self.token.kind == "end":
            raise self._failure("The text is empty; a kernel is spelled as in 'rbf*periodic + rq'.")
        expression = self._sum()
        if self.token.kind != "end":
            raise self._failure(f"Expected '+', '*' or the end, not {self.token.text!r}.")
        return expression

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.place]

    def _sum(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._failure(f"Parentheses are nested more than {DEEPEST} deep.")
        parts = [self._product()]
        while self._take("+"):
            parts.append(self._product())
        self.depth -= 1
        return add(*parts)

    def _product(self) -> Expression:
        factor: float | None = None
        parts: list[Expression] = []
        while True:
            position = self.token.position
            power = self._factor()
            if isinstance(power, int | float):
                if power <= 0:
                    raise self._failure("An amplitude is a variance: it must be positive.", position)
                factor = power * (1.0 if factor is None else factor)
            else:
                parts.append(power)
            if not self._take("*"):
                break
        if not parts:
            return Term("constant", values=(("constant", (factor or 1.0,)),))
        return multiply(*parts, factor=factor)

    def _factor(self) -> Expression | float:
        token = self._next()
        if token.kind == "number":
            inner: Expression | float = float(token.text)
        elif token.kind == "name":
            inner = self._term(token)
        elif token.text == "(":
            inner = self._sum()
            self._expect(")")
        else:
            raise self._failure(f"Expected a kernel, a number or '(', not {token.text!r}.", token.position)
        if not (self._take("^") or self._take("**")):
            return inner
        power = self._whole("A power", 1, LARGEST_POWER)
        return float(inner**power) if isinstance(inner, int | float) else multiply(*[inner] * power)

    def _term(self, token: Token) -> Term:
        name, option = self._name(token)
        base = BASES[name]
        columns = self._columns() if self._take("[") else None
        given: dict[str, tuple[float, ...]] = {}
        is_ard = False
        if self._take("("):
            while not self._take(")"):
                start = self.token
                if start.kind == "number":
                    option = self._option(name, base)
                elif start.kind == "name" and start.text == "ard":
                    self._next()
                    is_ard = True
                    if not base.takes_ard:
                        raise self._failure(f"{name} has no lengthscale for each column.", start.position)
                else:
                    key = self._key(name, base)
                    if key in COLUMNS:
                        columns = self._columns("")
                    else:
                        given[key] = self._values(key, base)
                if not self._take(",") and self.token.text != ")":
                    raise self._failure(f"Expected ',' or ')', not {self.token.text!r}.")
        if columns is None:
            columns = self._columns() if self._take("[") else None
        return Term(name, columns, option, tuple(given.items()), is_ard)

    def _name(self, token: Token) -> tuple[str, int | None]:
        name = token.text.lower()
        name = ALIASES.get(name, name)
        if name in BASES:
            option = BASES[name].option
            return name, None if option is None else option.default
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        base = BASES.get(stem := ALIASES.get(stem, stem))
        if base is not None and base.option is not None and digits:
            return stem, self._bounded(int(digits), stem, base.option, token.position)
        if name in ("noise", "white"):
            raise self._failure(
                "Noise is not a kernel here: estimators learn the noise variance themselves.", token.position
            )
        near = get_close_matches(name, [*BASES, *ALIASES], n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise self._failure(
            f"Unknown kernel {token.text!r}.{hint} Known are {', '.join(BASES)}.", token.position
        )

    def _option(self, name: str, base: Base) -> int:
        position = self.token.position
        if base.option is None:
            raise self._failure(f"{name} takes no plain number; name it, as in {name}({_example(base)}=2).")
        value = self._whole(f"The {base.option.name} of {name}", 0, 10**6)
        return self._bounded(value, name, base.option, position)

    def _bounded(self, value: int, name: str, option: Option, position: int) -> int:
        if not option.least <= value <= option.most:
            problem = f"must be between {option.least} and {option.most}, not {value}."
            raise self._failure(f"The {option.name} of {name} {problem}", position)
        return value

    def _key(self, name: str, base: Base) -> str:
        token = self._next()
        known = (*base.hyperparameters, *COLUMNS, *(("ard",) if base.takes_ard else ()))
        if token.kind != "name":
            raise self._failure(f"Expected an argument of {name}, not {token.text!r}.", token.position)
        key = SHORTER.get(token.text, token.text)
        if key not in known:
            near = get_close_matches(token.text, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            problem = f"{name} has no argument {token.text!r};{hint} it takes {', '.join(known)}."
            raise self._failure(problem, token.position)
        self._expect("=")
        return key

    def _values(self, key: str, base: Base) -> tuple[float, ...]:
        in_brackets = self._take("(")
        values: list[float] = []
        while True:
            token = self._next()
            if token.kind != "number":
                raise self._failure(f"Expected a number for {key}, not {token.text!r}.", token.position)
            if key in base.positive and float(token.text) <= 0:
                raise self._failure(f"{key} must be positive, not {token.text}.", token.position)
            values.append(float(token.text))
            if self.token.text != "," or (not in_brackets and self.tokens[self.place + 1].kind != "number"):
                break
            self._next()
        if in_brackets:
            self._expect(")")
        return tuple(values)

    def _columns(self, closing: str = "]") -> tuple[int, ...]:
        most = 10**6 if self.num_dims is None else self.num_dims - 1
        columns = [self._whole("A column", 0, most)]
        while self.token.text == "," and self.tokens[self.place + 1].kind == "number":
            self._next()
            position = self.token.position
            columns.append(self._whole("A column", 0, most))
            if columns[-1] in columns[:-1]:
                raise self._failure(f"Column {columns[-1]} is named twice.", position)
        if closing:
            self._expect(closing)
        return tuple(columns)

    def _whole(self, what: str, least: int, most: int) -> int:
        token = self._next()
        if token.kind != "number" or not token.text.isdigit() or not least <= int(token.text) <= most:
            problem = f"{what} must be a whole number between {least} and {most}, not {token.text!r}."
            raise self._failure(problem, token.position)
        return int(token.text)

    def _next(self) -> Token:
        token = self.token
        self.place = min(self.place + 1, len(self.tokens) - 1)
        return token

    def _take(self, mark: str) -> bool:
        found = self.token.kind == "mark" and self.token.text == mark
        if found:
            self._next()
        return found

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._failure(f"Expected {mark!r}, not {self.token.text!r}.")

    def _failure(self, problem: str, position: int | None = None) -> SpellingError:
        return SpellingError(self.text, self.token.position if position is None else position, problem)


def _example(base: Base) -> str:
    return base.hyperparameters[0] if base.hyperparameters else "dims"


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
    """Whether a factor has an amplitude, which can be that of the product."""
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


def parse(
    text: str,
    num_dims: int | None = None,
    *,
    separate_lengthscales: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Kernel:
    """The GPyTorch kernel of a spelling, with every positive hyperparameter held as its logarithm.

    `num_dims` is the number of columns of the inputs. Kernels with one hyperparameter per column need it, and
    columns are checked against it. `separate_lengthscales` writes `ard` into every base kernel.
    Hyperparameters start at 1 where the text gives none; `orbitwise.kernels.start` sets them from data.

    Parameters
    ----------
    text : str
        Base kernels joined by + and *, with powers, brackets and numbers for amplitudes:
        "2*rbf[0](lengthscale=3)*periodic + linear".
    num_dims : int, default=None
        The number of columns of the inputs.
    separate_lengthscales : bool, default=False
        Whether every base kernel has one lengthscale per column.
    dtype : torch.dtype, default=torch.float64
        The precision of the hyperparameters.

    Raises
    ------
    SpellingError
        Where the text spells no kernel; the message points to the place.
    """
    if num_dims is not None and (isinstance(num_dims, bool) or num_dims < 1):
        raise ValueError(f"num_dims must be a whole number of at least 1, or None, not {num_dims!r}.")
    expression = parse_expression(text, num_dims)
    return build(expression, num_dims, separate_lengthscales).to(dtype)


def parse_expression(text: str, num_dims: int | None = None) -> Expression:
    """The sums and products of a spelling, as plain data."""
    if not isinstance(text, str):
        raise TypeError(
            f"A kernel is spelled in a str, such as 'rbf*periodic + rq', not {type(text).__name__}."
        )
    return Parser(text, num_dims).whole()


def spell(kernel: Kernel, values: bool = False, digits: int = 6) -> str:
    """The spelling of a kernel made of base kernels, sums, products and scales; the inverse of `parse`.

    With `values`, hyperparameters and amplitudes are written too, to `digits` digits.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        A kernel of base kernels, sums, products and scales.
    values : bool, default=False
        Whether hyperparameters are written.
    digits : int, default=6
        Significant digits of the values.

    Returns
    -------
    str
        Text that `parse` makes the same kernel of, up to rounding where values are written.
    """
    return str(expression_of(kernel, values, digits))


def expression_of(kernel: Kernel, values: bool = False, digits: int = 6) -> Expression:
    """The sums and products that a kernel is made of."""
    if len(kernel.batch_shape):
        raise ValueError(
            f"A kernel of batch shape {tuple(kernel.batch_shape)} has no spelling; spell one by one."
        )
    if type(kernel) is ScaleKernel:
        inner = expression_of(kernel.base_kernel, values, digits)
        return multiply(inner, factor=_rounded(kernel.outputscale, digits)[0]) if values else inner
    if type(kernel) is AdditiveKernel or type(kernel) is ProductKernel:
        parts = [expression_of(part, values, digits) for part in children_of(kernel)]
        return add(*parts) if type(kernel) is AdditiveKernel else multiply(*parts)
    name, option = name_of(kernel)
    base = BASES[name]
    is_ard = base.takes_ard and not base.needs_width and (kernel.ard_num_dims or 1) > 1
    given = [(each, _rounded(getattr(kernel, each), digits)) for each in base.hyperparameters]
    return Term(name, columns_of(kernel), option, tuple(given) if values else (), is_ard)


def _rounded(tensor: Tensor, digits: int) -> tuple[float, ...]:
    return tuple(float(f"{value:.{digits}g}") for value in tensor.detach().double().reshape(-1).tolist())
