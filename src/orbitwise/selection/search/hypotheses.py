"""The grammar of a search: structures of kernels and claims, and the steps from one to the next.

S → S + B      a base kernel is added
S → S * B      a component, or the whole, is multiplied by a base kernel
B → B′         a base kernel is exchanged
S * B → S + B  a factor becomes a component
claim          f is told to be invariant, or no longer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import final

from orbitwise.kernels.spelling import (
    Expression,
    Form,
    Product,
    Sum,
    Term,
    add,
    multiply,
    normal_form,
    parse_expression,
    summands,
    terms,
)
from orbitwise.selection.search.claims import Claim

MOST_CLAIMS = 2
MOST_FACTORS = 3
Key = tuple[Form, frozenset[str]]
SMOOTH = ("rbf", "rq", "matern12", "matern32", "matern52")


@final
@dataclass(frozen=True)
class Hypothesis:
    """A structure with what is known of its hyperparameters, and the noise of standardised targets."""

    expression: Expression
    claims: tuple[Claim, ...] = ()
    noise: float | None = None

    @property
    def key(self) -> Key:
        """What two spellings of the same structure share."""
        return self.structure()

    def structure(self, num_dims: int | None = None) -> Key:
        """The normal form of the kernel under the claims, and the claims.

        An rbf around a circle is the periodic kernel. Under an exchange of columns a component is the same
        as the exchanged one, and its sum with that one is no new component.
        """
        expression, claims = self.expression, self.claims
        for claim in claims:
            if claim.kind == "period" and _is_wrapped_rbf(expression, claim.columns[0]):
                expression = _with_names(expression, claim.columns[0], {"rbf": "periodic"})
                claims = tuple(each for each in claims if each is not claim)
        forms = [normal_form(expression, num_dims)]
        exchanges = [claim for claim in claims if claim.kind in ("swap", "permutation")]
        for claim in exchanges:
            moved = claim.columns or tuple({c for term in terms(expression) for c in term.columns or ()})
            parts = [_least(part, moved, num_dims) for part in summands(expression)]
            forms = [tuple(sorted(set(parts)))]
        return forms[0], frozenset(str(claim.structure) for claim in claims)

    @property
    def size(self) -> int:
        """The number of base kernels and claims."""
        return len(terms(self.expression)) + len(self.claims)

    def __str__(self) -> str:
        text = str(bare(self.expression))
        return text + "".join(f" | {claim.structure}" for claim in self.claims)


def bare(expression: Expression) -> Expression:
    """The expression without hyperparameters and amplitudes."""
    if isinstance(expression, Term):
        return expression.structure
    parts = [bare(part) for part in expression.parts]
    return add(*parts) if isinstance(expression, Sum) else multiply(*parts)


def base_terms(names: Sequence[str], num_dims: int) -> list[Term]:
    """The base kernels of every column; with several columns, the smooth ones of all columns together too.

    A name may have an option or columns of its own, as in "sm(3)" or "rbf[0]".
    """
    found: list[Term] = []
    for name in names:
        term = parse_expression(name, num_dims)
        if not isinstance(term, Term) or term.values or term.is_ard:
            raise ValueError(f"A base kernel of a search is one name, such as 'rbf', not {name!r}.")
        if num_dims == 1 or term.columns is not None:
            found.append(term)
            continue
        found += [term] if term.name in (*SMOOTH, "sm") else []
        found += [replace(term, columns=(column,)) for column in range(num_dims)]
    return found


def neighbours(
    hypothesis: Hypothesis, bases: Sequence[Term], claims: Sequence[Claim], grows: bool = True
) -> Iterator[tuple[Hypothesis, Term | None]]:
    """Every hypothesis one step away, with the term that is new in it; known values stay.

    Without `grows` the number of base kernels stays.
    """
    expression = hypothesis.expression
    bases = [base for base in bases if not _is_wrapped(base, hypothesis.claims)]
    for base in bases if grows else ():
        yield replace(hypothesis, expression=add(expression, base)), base
    for base in bases:
        for grown in _multiplied(expression, base) if grows else ():
            yield replace(hypothesis, expression=grown), base
        for exchanged in _exchanged(expression, base):
            yield replace(hypothesis, expression=exchanged), base
    for loosened in _loosened(expression):
        yield replace(hypothesis, expression=loosened), None
    for claim in hypothesis.claims:
        yield replace(hypothesis, claims=tuple(each for each in hypothesis.claims if each != claim)), None
    yield from claimed(hypothesis, claims)


def _is_wrapped(base: Term, claims: Sequence[Claim]) -> bool:
    """Whether it is a line or a cycle in a column that a claim makes a circle, where both mean nothing."""
    circles = [claim.columns[0] for claim in claims if claim.kind == "period"]
    return base.name in ("linear", "periodic") and any(_sees(base, column) for column in circles)


def claimed(hypothesis: Hypothesis, claims: Sequence[Claim]) -> Iterator[tuple[Hypothesis, None]]:
    """The hypothesis with one claim more; a period takes the place of periodic kernels of its column."""
    present = {(claim.kind, claim.columns) for claim in hypothesis.claims}
    mirrored = {claim.columns for claim in hypothesis.claims if claim.kind in ("mirror", "odd")}
    for claim in claims:
        clashes = claim.kind in ("mirror", "odd") and claim.columns in mirrored
        one_more = claim.kind == "period" and any(each.kind == "period" for each in hypothesis.claims)
        needless = claim.kind == "odd" and _is_odd(hypothesis.expression, claim.columns)
        if (claim.kind, claim.columns) in present or clashes or one_more or needless:
            continue
        if len(hypothesis.claims) < MOST_CLAIMS:
            expression = hypothesis.expression
            if claim.kind == "period":
                expression = _with_names(expression, claim.columns[0], {"periodic": "rbf", "linear": "rbf"})
            yield replace(hypothesis, expression=expression, claims=(*hypothesis.claims, claim)), None


def _is_odd(expression: Expression, columns: tuple[int, ...]) -> bool:
    """Whether every component is odd already: a line in that column, times what does not look at it."""
    for part in summands(expression):
        own = [term for term in terms(part) if term.columns is None or set(term.columns) & set(columns)]
        if [term.name for term in own] != ["linear"] or len(columns) != 1:
            return False
    return True


def simplifications(hypothesis: Hypothesis) -> Iterator[Hypothesis]:
    """Every hypothesis with one component, factor or claim less."""
    for smaller in _smaller(hypothesis.expression):
        yield replace(hypothesis, expression=smaller)
    for claim in hypothesis.claims:
        yield replace(hypothesis, claims=tuple(each for each in hypothesis.claims if each != claim))


def _multiplied(expression: Expression, base: Term) -> Iterator[Expression]:
    if len(terms(expression)) < MOST_FACTORS or not isinstance(expression, Product):
        yield multiply(expression, base)
    if isinstance(expression, Sum):
        for i, part in enumerate(expression.parts):
            if len(terms(part)) < MOST_FACTORS:
                yield add(*expression.parts[:i], multiply(part, base), *expression.parts[i + 1 :])


def _exchanged(expression: Expression, base: Term) -> Iterator[Expression]:
    if isinstance(expression, Term):
        if expression.structure != base.structure:
            yield base
        return
    for i, part in enumerate(expression.parts):
        for other in _exchanged(part, base):
            parts = (*expression.parts[:i], other, *expression.parts[i + 1 :])
            yield add(*parts) if isinstance(expression, Sum) else multiply(*parts, factor=expression.factor)


def _loosened(expression: Expression) -> Iterator[Expression]:
    """With one factor of a component as a component of its own."""
    parts = summands(expression)
    for i, part in enumerate(parts):
        if not isinstance(part, Product) or len(part.parts) < 2:
            continue
        half = None if part.factor is None else part.factor / 2
        for j, factor in enumerate(part.parts):
            rest = multiply(*part.parts[:j], *part.parts[j + 1 :], factor=half)
            yield add(*parts[:i], rest, multiply(factor, factor=half), *parts[i + 1 :])


def _smaller(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, Term):
        return
    for i, part in enumerate(expression.parts):
        before, after = expression.parts[:i], expression.parts[i + 1 :]
        if before or after:
            rest = (*before, *after)
            yield add(*rest) if isinstance(expression, Sum) else multiply(*rest, factor=expression.factor)
        for smaller in _smaller(part):
            parts = (*before, smaller, *after)
            yield add(*parts) if isinstance(expression, Sum) else multiply(*parts, factor=expression.factor)


def _sees(term: Term, column: int) -> bool:
    return term.columns is None or column in term.columns


def _is_wrapped_rbf(expression: Expression, column: int) -> bool:
    return all(
        term.name == "rbf" and (term.columns is None or len(term.columns) == 1)
        for term in terms(expression)
        if _sees(term, column)
    )


def _with_names(expression: Expression, column: int, names: dict[str, str]) -> Expression:
    if isinstance(expression, Term):
        if not _sees(expression, column) or expression.name not in names:
            return expression
        return Term(names[expression.name], expression.columns)
    parts = [_with_names(part, column, names) for part in expression.parts]
    return add(*parts) if isinstance(expression, Sum) else multiply(*parts, factor=expression.factor)


def _least(component: Expression, moved: Sequence[int], num_dims: int | None) -> tuple[str, ...]:
    """The first of the normal forms that a component has after exchanges of columns."""
    forms = []
    for order in permutations(moved):
        names = dict(zip(moved, order, strict=True))
        renamed = [
            replace(term, columns=term.columns and tuple(sorted(names.get(c, c) for c in term.columns)))
            for term in terms(component)
        ]
        forms.append(normal_form(multiply(*renamed), num_dims)[0])
    return min(forms)
