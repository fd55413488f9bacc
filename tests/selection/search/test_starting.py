"""Starts of new hypotheses."""

import numpy as np
import pytest

from orbitwise.kernels.spelling import Product, Term, parse_expression, terms
from orbitwise.selection.search.hypotheses import (
    Claim,
    Hypothesis,
    start_from_data,
    starts_from_data,
    starts_from_parent,
    starts_with_line,
    without_values,
)

X = np.random.default_rng(0).uniform(0, 10, (90, 1))
LEFT = 0.5 * np.sin(2 * np.pi * X[:, 0] / 1.7)


@pytest.mark.parametrize("text", ["rbf", "rbf*periodic + linear", "(rbf + rq)*periodic", "sm(2) + constant"])
def test_fresh_starts_have_all_values_and_keep_the_structure(text: str):
    start = start_from_data(Hypothesis(parse_expression(text)), X, LEFT, 3)
    assert without_values(start.expression) == without_values(parse_expression(text))
    assert all(term.values for term in terms(start.expression))
    assert start == start_from_data(Hypothesis(parse_expression(text)), X, LEFT, 3)


def test_wrapped_columns_are_started_along_the_line():
    start = start_from_data(Hypothesis(parse_expression("rq"), (Claim("period", (0,)),)), X, LEFT, None)
    assert start.claims[0].value == pytest.approx(1.7, rel=0.02)
    assert str(without_values(start.expression)) == "rq"


def test_what_is_known_stays_and_what_is_new_begins_at_the_residuals():
    new = Term("periodic")
    parent = parse_expression("2*rbf(lengthscale=3)")
    added = Hypothesis(parse_expression("2*rbf(lengthscale=3) + periodic"))
    starts = starts_from_parent(added, new, X, LEFT, LEFT)
    start = starts[0]
    first, second = start.expression.parts  # pyright: ignore
    assert first == parent
    assert isinstance(second, Product)
    assert second.factor == pytest.approx(LEFT.var())
    cycles = [dict(terms(each.expression)[1].values) for each in starts]
    assert cycles[0]["period_length"][0] == pytest.approx(1.7, rel=0.02)
    # a cycle of 3.4 or 5.1 may have left its overtone alone
    sharp = [cycle["period_length"][0] for cycle in cycles if cycle["lengthscale"][0] == pytest.approx(0.3)]
    assert sharp[:3] == pytest.approx([3.4, 5.1, 6.8], rel=0.05)


def test_a_smooth_factor_starts_slow():
    start = starts_from_parent(
        Hypothesis(parse_expression("2*periodic(period=3)*rbf")), Term("rbf"), X, LEFT, LEFT
    )[0]
    cycle, drift = terms(start.expression)
    assert dict(cycle.values)["period_length"] == (3.0,)
    assert dict(drift.values)["lengthscale"][0] == pytest.approx(3 * X.std())
    assert start.expression.factor == 2.0  # pyright: ignore


def test_a_smooth_term_starts_slow_and_fast():
    starts = starts_from_parent(
        Hypothesis(parse_expression("2*periodic(period=3) + rbf")), Term("rbf"), X, LEFT, LEFT
    )
    scales = [dict(terms(each.expression)[1].values)["lengthscale"][0] for each in starts]
    assert scales == pytest.approx([scales[0], 0.3 * scales[0], 0.1 * scales[0]])


def test_a_line_starts_in_the_middle_and_at_both_ends():
    starts = starts_from_parent(
        Hypothesis(parse_expression("periodic(period=3)*linear")), Term("linear"), X, LEFT, LEFT
    )
    centres = [dict(terms(each.expression)[1].values)["centre"][0] for each in starts]
    assert centres == pytest.approx([X.mean(), X.min(), X.max()])


def test_a_cycle_starts_anew_at_several_periods():
    added = Hypothesis(parse_expression("2*rbf(lengthscale=0.1)*periodic"), (), 0.01)
    starts = starts_from_data(
        added, Term("periodic"), X, 9 * X[:, 0] + LEFT + np.sin(2 * np.pi * X[:, 0] / 2.9)
    )
    assert all(each.noise is None for each in starts)
    assert all(dict(terms(each.expression)[0].values)["lengthscale"][0] > 0.5 for each in starts)
    periods = np.array([dict(terms(each.expression)[1].values)["period_length"][0] for each in starts])
    assert np.abs(periods - 2.9).min() < 0.1
    assert np.abs(periods - 1.7).min() < 0.05
    assert len(starts_from_data(added, Term("rbf"), X, LEFT)) == 1


def test_beside_a_line_the_others_start_from_the_rest_and_keep_their_periods():
    y = 2 * X[:, 0] + LEFT
    parent = Hypothesis(parse_expression("9*rbf(lengthscale=7)*periodic(period=1.6) + linear"), (), 0.01)
    (start,) = starts_with_line(parent, Term("linear"), X, y)
    drift, cycle, line = terms(start.expression)
    assert dict(cycle.values)["period_length"] == (1.6,)
    assert dict(drift.values)["lengthscale"][0] == pytest.approx(X.std(), rel=0.1)
    assert dict(line.values)["centre"][0] == pytest.approx(X.mean())
    first, second = start.expression.parts  # pyright: ignore
    design = np.column_stack([X[:, 0], np.ones(len(X))])
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    share = rest.var() / y.var()
    assert first.factor == pytest.approx(share)
    assert second.factor == pytest.approx(1 - share)
    # a line that multiplies has nothing beside it
    assert starts_with_line(Hypothesis(parse_expression("periodic*linear")), Term("linear"), X, y) == []


def test_claims_get_a_value():
    start = starts_from_parent(
        Hypothesis(parse_expression("rbf(lengthscale=1)"), (Claim("mirror", (0,)),)), None, X, LEFT, LEFT
    )[0]
    assert start.claims[0].value is not None
    assert start.expression == parse_expression("rbf(lengthscale=1)")
