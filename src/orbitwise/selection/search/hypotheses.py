"""Hypotheses of a search: kernels with claims on f, the steps between them, and starting values.

A claim states an invariance of f as plain data, sometimes with a learned value. Known values are kept in a
step, and a new term starts from the residuals of the other terms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, count, permutations
from typing import final

import numpy as np

from orbitwise.estimators.invariances import SEARCHED, find
from orbitwise.functionals.averages import OrbitAverage
from orbitwise.functionals.functional import Evaluation, Functional
from orbitwise.functionals.points import Wrap
from orbitwise.kernels.bases import start
from orbitwise.kernels.spectrum import Array, detrend, spectral_peaks, strongest_periods
from orbitwise.kernels.spelling import (
    Expression,
    Form,
    Product,
    Sum,
    Term,
    add,
    build,
    expression_of,
    map_terms,
    multiply,
    normal_form,
    parse_expression,
    summands,
    terms,
)
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.mirrors import MirrorOrbit
from orbitwise.transforms.permutations import exchange_permutations

KINDS = SEARCHED
MOST_COLUMNS = 6
"""With more columns than this, only claims that are named are tried, because there would be too many."""
MOST_PERMUTED = 4
"""A permutation of more columns than this is tried only if it is named, because the orbit of five columns has
120 points, and a covariance is a sum over all pairs of points."""

NUM_CENTRES = 601
"""The number of centres at which a mirror is tried; fast cycles need centres that lie close together."""

CLAIM = re.compile(
    r"\s*(\w+)\s*(?:\[\s*([\d\s,]*)\])?\s*(?:\(\s*(?:centre|period)\s*=\s*([-+.\deE]+)\s*\))?\s*"
)


@final
@dataclass(frozen=True)
class Claim:
    """An invariance of f; `value` is its centre or period, which is fixed if `is_given`."""

    kind: str
    columns: tuple[int, ...] = ()
    value: float | None = None
    is_given: bool = False

    @property
    def structure(self) -> Claim:
        """The claim without a learned value."""
        return self if self.is_given else replace(self, value=None)

    @property
    def num_parameters(self) -> int:
        """The number of learned values of the claim."""
        return int(self.kind in ("mirror", "odd", "period") and not self.is_given)

    def __str__(self) -> str:
        columns = f"[{','.join(map(str, self.columns))}]" if self.columns else ""
        given = f"({'period' if self.kind == 'period' else 'centre'}={self.value:g})" if self.is_given else ""
        return self.kind + columns + given


def claims_of(names: str | Sequence[str] | None, num_dims: int) -> list[Claim]:
    """The claims to try: all that suit the inputs for "auto", those of a list of names, or none for None."""
    if names is None:
        return []
    if isinstance(names, str):
        if names != "auto":
            raise ValueError(f"invariances must be 'auto', None or a list of names, not {names!r}.")
        names = KINDS if num_dims <= MOST_COLUMNS else ()
        names = [name for name in names if name != "permutation" or num_dims <= MOST_PERMUTED]
    return list(dict.fromkeys(claim for name in names for claim in _read(name, num_dims)))


def _read(name: str, num_dims: int) -> list[Claim]:
    match = CLAIM.fullmatch(name) if isinstance(name, str) else None
    if match is None or match[1] not in KINDS:
        find(str(name), "search")  # its error suggests a similar name, or an estimator that takes this one
        raise ValueError(f"Unknown invariance {name!r}; known names are {', '.join(KINDS)}.")
    kind, columns = match[1], tuple(int(each) for each in re.findall(r"\d+", match[2] or ""))
    if any(column >= num_dims for column in columns):
        raise ValueError(
            f"The invariance {name!r} names a column that inputs of {num_dims} columns do not have."
        )
    value = None if match[3] is None else float(match[3])
    is_given = value is not None
    if kind == "permutation":
        chosen = columns or tuple(range(num_dims))
        return [Claim(kind, columns)] if len(chosen) > 2 or (columns and len(chosen) > 1) else []
    if kind == "swap":
        pairs = [columns] if columns else list(combinations(range(num_dims), 2))
        if columns and len(columns) != 2:
            raise ValueError(f"A swap needs two columns, as in 'swap[0,1]', not {name!r}.")
        return [Claim(kind, pair) for pair in pairs]
    each = [columns] if columns else [(column,) for column in range(num_dims)]
    if kind == "period" and columns and len(columns) != 1:
        raise ValueError(f"A period belongs to one column, as in 'period[0]', not {name!r}.")
    return [Claim(kind, chosen, value, is_given) for chosen in each]


def with_starting_value(claim: Claim, x: Array, y: Array, seed: int | None) -> Claim:
    """The claim with a starting value: the centre that fits best, or the strongest period."""
    if claim.value is not None or claim.num_parameters == 0:
        return claim
    random = np.random.default_rng(seed)
    column = x[:, claim.columns[0]]
    if claim.kind == "period":
        peaks = spectral_peaks(column, y, 3).frequencies
        place = 0 if seed is None else int(random.integers(len(peaks) or 1))
        period = 1.0 / peaks[place] if len(peaks) else float(np.ptp(column)) / 2 or 1.0
        return replace(claim, value=float(period))
    # independent of the seed, because learning hardly ever finds the centre from elsewhere
    return replace(claim, value=best_mirror(column, y, claim.kind == "odd"))


def best_mirror(column: Array, y: Array, is_odd: bool) -> float:
    """The centre about which targets agree best with interpolated targets at the mirrored inputs.

    Centres are compared by n log(cost), a log likelihood ratio: many rows that agree well count for more than
    a few that agree very well.
    """
    order = np.argsort(column, kind="stable")
    x, targets = column[order], y[order] - (0.0 if is_odd else y.mean())
    low, high = np.quantile(x, [0.2, 0.8])
    centres = np.linspace(low, high, NUM_CENTRES) if high > low else np.array([float(np.median(x))])
    costs = []
    for centre in centres:
        mirrored = 2 * centre - x
        inside = (mirrored >= x[0]) & (mirrored <= x[-1])
        seen = np.interp(mirrored[inside], x, targets)
        difference = targets[inside] + seen if is_odd else targets[inside] - seen
        spread = (np.square(targets[inside]).mean() + np.square(seen).mean()) if inside.any() else 0.0
        cost = np.square(difference).mean() / spread if spread > 0 else 1.0
        costs.append(inside.sum() * math.log(max(cost, 1e-12)))
    return float(centres[int(np.argmin(costs))])


def functional_of_claims(claims: Sequence[Claim], num_dims: int) -> Functional:
    """The functional L for which f(x) = L_x g satisfies all claims; a period is the innermost part."""
    total: Functional = Evaluation()
    for claim in sorted(claims, key=lambda each: each.kind == "period"):
        total = total @ _functional(claim, num_dims)
    return total


def _functional(claim: Claim, num_dims: int) -> Functional:
    if claim.kind in ("mirror", "odd"):
        orbit = MirrorOrbit(claim.value or 0.0, claim.columns, claim.kind == "odd", not claim.is_given)
        return OrbitAverage(orbit)
    if claim.kind == "period":
        return Wrap(claim.value or 1.0, claim.columns[0], not claim.is_given)
    moved = claim.columns or tuple(range(num_dims))
    labels = ["moved" if column in moved else column for column in range(num_dims)]
    return OrbitAverage(FiniteOrbit(exchange_permutations(labels)))


def learned_claims(claims: Sequence[Claim], functional: Functional) -> tuple[Claim, ...]:
    """The claims with the present values of the functional's parameters."""
    mirrors = [module for module in functional.modules() if isinstance(module, MirrorOrbit)]
    wraps = [module for module in functional.modules() if isinstance(module, Wrap)]
    values: dict[tuple[str, tuple[int, ...]], float] = {}
    for mirror in mirrors:
        values["odd" if mirror.is_odd else "mirror", mirror.columns or ()] = mirror.centre[0].item()
    for wrap in wraps:
        values["period", (wrap.column,)] = wrap.period.item()
    return tuple(
        replace(claim, value=values.get((claim.kind, claim.columns), claim.value)) for claim in claims
    )


def in_process_columns(
    expression: Expression, claims: Sequence[Claim], num_dims: int
) -> tuple[Expression, int]:
    """The expression in the input columns of g, and their number: a periodic column becomes two."""
    wrapped = _wrapped(claims)
    if wrapped is None:
        return expression, num_dims
    places = [(c, c + 1) if c == wrapped else (c + (c > wrapped),) for c in range(num_dims)]
    return _in_columns(expression, places), num_dims + 1


def in_input_columns(expression: Expression, claims: Sequence[Claim]) -> Expression:
    """The inverse of `in_process_columns`."""
    wrapped = _wrapped(claims)
    if wrapped is None:
        return expression
    most = max((c for term in terms(expression) for c in term.columns or ()), default=0)
    places = [() if c == wrapped + 1 else (c - (c > wrapped),) for c in range(most + 1)]
    return _in_columns(expression, places)


def _wrapped(claims: Sequence[Claim]) -> int | None:
    return next((claim.columns[0] for claim in claims if claim.kind == "period"), None)


def _in_columns(expression: Expression, places: Sequence[tuple[int, ...]]) -> Expression:
    """The expression with each column replaced by its new columns."""

    def moved(term: Term) -> Term:
        if term.columns is None:
            return term
        return replace(term, columns=tuple(place for column in term.columns for place in places[column]))

    return map_terms(expression, moved)


MOST_CLAIMS = 2
MOST_FACTORS = 3
Key = tuple[Form, frozenset[str]]
SMOOTH = ("rbf", "rq", "matern12", "matern32", "matern52")


@final
@dataclass(frozen=True)
class Hypothesis:
    """A structure with the known values of its hyperparameters, and the noise of standardised targets."""

    expression: Expression
    claims: tuple[Claim, ...] = ()
    noise: float | None = None

    @property
    def key(self) -> Key:
        """A key that is equal for all spellings of one structure."""
        return self.structure()

    def structure(self, num_dims: int | None = None) -> Key:
        """The normal form of the kernel under the claims, and the claims.

        An rbf on a circle is the periodic kernel. If columns are exchangeable, a component equals its version
        with exchanged columns, so their sum has only one component.
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
            parts = [_smallest_form(part, moved, num_dims) for part in summands(expression)]
            forms = [tuple(sorted(set(parts)))]
        return forms[0], frozenset(str(claim.structure) for claim in claims)

    @property
    def cancels_constants(self) -> bool:
        """Whether adding a constant to g leaves f unchanged."""
        return any(claim.kind == "odd" for claim in self.claims)

    @property
    def size(self) -> int:
        """The number of base kernels and claims."""
        return len(terms(self.expression)) + len(self.claims)

    def __str__(self) -> str:
        text = str(without_values(self.expression))
        return text + "".join(f" | {claim.structure}" for claim in self.claims)


def without_values(expression: Expression) -> Expression:
    """The expression without hyperparameters and amplitudes."""
    if isinstance(expression, Term):
        return expression.structure
    parts = [without_values(part) for part in expression.parts]
    return add(*parts) if isinstance(expression, Sum) else multiply(*parts)


def base_terms(names: Sequence[str], num_dims: int) -> list[Term]:
    """The base kernels on every column; with several columns, smooth ones also on all columns together.

    A name may include an option or columns, as in "sm(3)" or "rbf[0]".
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


def first_hypotheses(bases: Sequence[Term], num_dims: int) -> list[Hypothesis]:
    """The first hypotheses of a search: every base kernel, and an rbf with a lengthscale for each column."""
    singles = [Hypothesis(base) for base in bases]
    if num_dims > 1 and Term("rbf") in bases:
        singles.append(Hypothesis(Term("rbf", is_ard=True)))
    return singles


def neighbours(
    hypothesis: Hypothesis, bases: Sequence[Term], claims: Sequence[Claim], grows: bool = True
) -> Iterator[tuple[Hypothesis, Term | None]]:
    """Every hypothesis one step away, with its new term; known values are kept.

    With `grows=False` the number of base kernels does not increase.
    """
    expression = hypothesis.expression
    bases = [base for base in bases if not _is_wrapped(base, hypothesis.claims)]
    for base in bases if grows else ():
        yield replace(hypothesis, expression=add(expression, base)), base
    for base in bases:
        for larger in _multiplied(expression, base) if grows else ():
            yield replace(hypothesis, expression=larger), base
        for exchanged in _exchanged(expression, base):
            yield replace(hypothesis, expression=exchanged), base
    for loosened in _loosened(expression):
        yield replace(hypothesis, expression=loosened), None
    for claim in hypothesis.claims:
        yield replace(hypothesis, claims=tuple(each for each in hypothesis.claims if each != claim)), None
    yield from with_one_more_claim(hypothesis, claims)


def _is_wrapped(base: Term, claims: Sequence[Claim]) -> bool:
    """Whether a base kernel is linear or periodic in a column that a period turns into a circle."""
    circles = [claim.columns[0] for claim in claims if claim.kind == "period"]
    return base.name in ("linear", "periodic") and any(_sees(base, column) for column in circles)


def with_one_more_claim(hypothesis: Hypothesis, claims: Sequence[Claim]) -> Iterator[tuple[Hypothesis, None]]:
    """The hypothesis with one more claim; a period replaces periodic kernels of its column."""
    present = {(claim.kind, claim.columns) for claim in hypothesis.claims}
    mirrored = {claim.columns for claim in hypothesis.claims if claim.kind in ("mirror", "odd")}
    for claim in claims:
        clashes = claim.kind in ("mirror", "odd") and claim.columns in mirrored
        one_more = claim.kind == "period" and any(each.kind == "period" for each in hypothesis.claims)
        needless = claim.kind == "odd" and _is_odd(hypothesis.expression, claim.columns)
        # lengthscales for each column have no meaning on a circle
        needless |= claim.kind == "period" and any(term.is_ard for term in terms(hypothesis.expression))
        if (claim.kind, claim.columns) in present or clashes or one_more or needless:
            continue
        if len(hypothesis.claims) < MOST_CLAIMS:
            expression = hypothesis.expression
            if claim.kind == "period":
                expression = _with_names(expression, claim.columns[0], {"periodic": "rbf", "linear": "rbf"})
            yield replace(hypothesis, expression=expression, claims=(*hypothesis.claims, claim)), None


def _is_odd(expression: Expression, columns: tuple[int, ...]) -> bool:
    """Whether every component is already odd: linear in that column, and otherwise independent of it."""
    for part in summands(expression):
        own = [term for term in terms(part) if term.columns is None or set(term.columns) & set(columns)]
        if [term.name for term in own] != ["linear"] or len(columns) != 1:
            return False
    return True


def simplifications(hypothesis: Hypothesis) -> Iterator[Hypothesis]:
    """Every hypothesis with one component, factor or claim fewer."""
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
            yield expression.with_parts(parts)


def _loosened(expression: Expression) -> Iterator[Expression]:
    """Every expression in which one factor of a component becomes a separate component."""
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
            yield expression.with_parts((*before, *after))
        for smaller in _smaller(part):
            parts = (*before, smaller, *after)
            yield expression.with_parts(parts)


def _sees(term: Term, column: int) -> bool:
    return term.columns is None or column in term.columns


def _is_wrapped_rbf(expression: Expression, column: int) -> bool:
    return all(
        term.name == "rbf" and (term.columns is None or len(term.columns) == 1)
        for term in terms(expression)
        if _sees(term, column)
    )


def _with_names(expression: Expression, column: int, names: dict[str, str]) -> Expression:
    """The expression with base kernels on one column replaced, by name."""

    def renamed(term: Term) -> Term:
        is_meant = _sees(term, column) and term.name in names
        return Term(names[term.name], term.columns) if is_meant else term

    return map_terms(expression, renamed)


def _smallest_form(component: Expression, moved: Sequence[int], num_dims: int | None) -> tuple[str, ...]:
    """The smallest normal form of a component over all exchanges of columns."""
    forms = []
    for order in permutations(moved):
        names = dict(zip(moved, order, strict=True))
        renamed = [
            replace(term, columns=term.columns and tuple(sorted(names.get(c, c) for c in term.columns)))
            for term in terms(component)
        ]
        forms.append(normal_form(multiply(*renamed), num_dims)[0])
    return min(forms)


CYCLES = ("periodic", "cosine")
NUM_PERIODS = 6
SHARP = 0.3
FASTER = (0.3, 0.1)
SLOW = 3.0
"""The starting lengthscale of a smooth factor in multiples of the usual one; the product then starts close to
the expression before multiplication."""


def start_from_data(hypothesis: Hypothesis, x: Array, y: Array, seed: int | None) -> Hypothesis:
    """The structure with all starting values taken from the data."""
    structure = without_values(hypothesis.expression)
    _, width = in_process_columns(structure, hypothesis.claims, x.shape[1])
    claims = tuple(with_starting_value(claim.structure, x, y, seed) for claim in hypothesis.claims)
    if width != x.shape[1]:
        # lengthscales on a circle start from those on the line
        structure = map_terms(structure, lambda term: _with_values_from_data(term, x, y, seed))
    else:
        structure = expression_of(start(build(structure, width), x, y, seed=seed), values=True, digits=17)
    return Hypothesis(structure, claims, None)


def starts_from_parent(
    hypothesis: Hypothesis, new: Term | None, x: Array, y: Array, left: Array
) -> list[Hypothesis]:
    """Starts in which the new term has values from the residuals `left` of the parent hypothesis.

    The likelihood may have several modes, so there are several starts. A new cycle starts at every period
    that is strong in the residuals or in the targets; a smooth term starts slow and fast; a linear factor
    starts with its zero in the middle and at both ends of the data.
    """
    claims = tuple(with_starting_value(claim, x, y, None) for claim in hypothesis.claims)
    if new is None:
        return [replace(hypothesis, claims=claims)]
    expression = _with_values_of_new_terms(hypothesis.expression, x, left)
    first = replace(hypothesis, expression=expression, claims=claims)
    place = _place_of_new(hypothesis)
    changes: list[dict[str, float]] = []
    if new.name in SMOOTH:
        slow = dict(terms(expression)[place].values)["lengthscale"][0]
        changes = [{"lengthscale": slow * factor} for factor in FASTER]
    elif new.name in CYCLES:
        changes = _values_of_new_cycle(new, x, y, left)
    elif new.name == "linear" and _is_factor(new, hypothesis.expression) and len(new.columns or (0,)) == 1:
        changes = [{"centre": end} for end in (_column(new, x).min(), _column(new, x).max())]
    return _with_changes(first, place, changes)


def starts_from_data(hypothesis: Hypothesis, new: Term | None, x: Array, y: Array) -> list[Hypothesis]:
    """Starts from the data alone, at several periods if the new term is a cycle.

    They ignore the values of the parent, which may hide the new term: a fast variation looks like a cycle.
    """
    first = start_from_data(hypothesis, x, y, None)
    if new is None or new.name not in CYCLES:
        return [first]
    return _with_changes(first, _place_of_new(hypothesis), _periods(new, x, detrend(_column(new, x), y)[0]))


def _place_of_new(hypothesis: Hypothesis) -> int:
    """The index of the term that has no values yet."""
    return next(i for i, term in enumerate(terms(hypothesis.expression)) if not term.values)


def _with_changes(first: Hypothesis, place: int, changes: list[dict[str, float]]) -> list[Hypothesis]:
    """A start, and further starts with other values of one term."""
    return [
        first,
        *(
            replace(first, expression=_with_hyperparameters(first.expression, place, each))
            for each in changes
        ),
    ]


def _is_factor(new: Term, expression: Expression) -> bool:
    return all(part != new for part in summands(expression))


def _column(term: Term, x: Array) -> Array:
    """The first column on which a term depends."""
    return x[:, 0 if term.columns is None else term.columns[0]]


def _values_of_new_cycle(new: Term, x: Array, y: Array, left: Array) -> list[dict[str, float]]:
    """Values of a new cycle to start from: periods, and for overtones also shapes."""
    found = _periods(new, x, left)
    changes = [*found, *_periods(new, x, detrend(_column(new, x), y)[0])]
    if new.name == "periodic":
        # a smooth parent may leave only the overtones of a cycle with sharp turns
        overtones = [number * each["period_length"] for each in found[:2] for number in (2, 3, 4)]
        changes += [{"period_length": period, "lengthscale": SHARP} for period in overtones]
    return changes


def _periods(new: Term, x: Array, y: Array) -> list[dict[str, float]]:
    """The strongest periods in y."""
    half = 0.5 if new.name == "cosine" else 1.0  # GPyTorch's cosine repeats itself after twice its period
    found = _strongest(_column(new, x).tobytes(), y.tobytes())
    return [{"period_length": half * each} for each in found]


@lru_cache(maxsize=64)
def _strongest(column: bytes, y: bytes) -> tuple[float, ...]:
    """The strongest periods, cached because every option of a step asks for those of the same data."""
    return tuple(strongest_periods(np.frombuffer(column), np.frombuffer(y), NUM_PERIODS).tolist())


def starts_with_line(hypothesis: Hypothesis, new: Term, x: Array, y: Array) -> list[Hypothesis]:
    """A start for an added line: a least-squares fit, from whose residuals the other terms start anew.

    Only the periods of the other terms are kept, because without the line their values had to compensate for
    it.
    """
    others = [part for part in summands(hypothesis.expression) if part != new]
    columns = (0,) if new.columns is None else new.columns
    if not others or len(others) == len(summands(hypothesis.expression)) or len(columns) != 1:
        return []
    rest, share = detrend(x[:, columns[0]], y, degree=1)
    before = terms(add(*others))
    started = start_from_data(replace(hypothesis, expression=add(*others)), x, rest, None)
    parts = [multiply(part, factor=max(1 - share, 1e-6)) for part in summands(started.expression)]
    expression: Expression = add(*parts)
    for place, term in enumerate(before):
        kept = {name: values[0] for name, values in term.values if name == "period_length"}
        expression = _with_hyperparameters(expression, place, kept) if kept else expression
    line = multiply(_with_values_from_data(new, x, y, None), factor=max(share, 1e-6))
    return [replace(started, expression=add(expression, line))]


def _with_hyperparameters(expression: Expression, place: int, change: dict[str, float]) -> Expression:
    """The expression with other hyperparameters of the term with index `place`."""
    numbers = count()

    def changed(term: Term) -> Term:
        if next(numbers) != place:
            return term
        values = {**dict(term.values), **{name: (float(value),) for name, value in change.items()}}
        return replace(term, values=tuple(values.items()))

    return map_terms(expression, changed)


def _with_values_of_new_terms(expression: Expression, x: Array, left: Array) -> Expression:
    """The expression with values for new terms: components as large as the residuals, slow factors."""
    if isinstance(expression, Term):
        if expression.values:
            return expression
        size = max(float(np.var(left)), 1e-6)
        return multiply(_with_values_from_data(expression, x, left, None), factor=size)
    if isinstance(expression, Sum):
        return expression.with_parts(_with_values_of_new_terms(part, x, left) for part in expression.parts)
    return map_terms(expression, lambda term: _slow_factor(term, x, left))


def _slow_factor(term: Term, x: Array, left: Array) -> Expression:
    """A factor with values from the data; a smooth one is slow."""
    if term.values:
        return term
    valued = _with_values_from_data(term, x, left, None)
    if term.name in SMOOTH and isinstance(valued, Term):
        slower = tuple(
            (name, tuple(SLOW * each for each in values) if name == "lengthscale" else values)
            for name, values in valued.values
        )
        return replace(valued, values=slower)
    return valued


def _with_values_from_data(term: Term, x: Array, y: Array, seed: int | None) -> Expression:
    """The term with hyperparameters from the data, without an amplitude."""
    if term.values:
        return term
    valued = expression_of(start(build(term, x.shape[1]), x, y, seed=seed), values=True, digits=17)
    return multiply(*valued.parts) if isinstance(valued, Product) else valued
