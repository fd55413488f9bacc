"""Starts of new hypotheses."""

import numpy as np
import pytest

from orbitwise.kernels.expressions import Product, Term, terms
from orbitwise.kernels.spelling import parse_expression
from orbitwise.selection.search.claims import Claim
from orbitwise.selection.search.hypotheses import Hypothesis, bare
from orbitwise.selection.search.starting import fresh, grown

X = np.random.default_rng(0).uniform(0, 10, (90, 1))
LEFT = 0.5 * np.sin(2 * np.pi * X[:, 0] / 1.7)


@pytest.mark.parametrize("text", ["rbf", "rbf*periodic + linear", "(rbf + rq)*periodic", "sm(2) + constant"])
def test_fresh_starts_have_all_values_and_keep_the_structure(text: str):
    start = fresh(Hypothesis(parse_expression(text)), X, LEFT, 3)
    assert bare(start.expression) == bare(parse_expression(text))
    assert all(term.values for term in terms(start.expression))
    assert start == fresh(Hypothesis(parse_expression(text)), X, LEFT, 3)


def test_wrapped_columns_are_started_along_the_line():
    start = fresh(Hypothesis(parse_expression("rq"), (Claim("period", (0,)),)), X, LEFT, None)
    assert start.claims[0].value == pytest.approx(1.7, rel=0.02)
    assert str(bare(start.expression)) == "rq"


def test_what_is_known_stays_and_what_is_new_begins_at_the_residuals():
    new = Term("periodic")
    parent = parse_expression("2*rbf(lengthscale=3)")
    added = Hypothesis(parse_expression("2*rbf(lengthscale=3) + periodic"))
    starts = grown(added, new, X, LEFT, LEFT)
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
    start = grown(Hypothesis(parse_expression("2*periodic(period=3)*rbf")), Term("rbf"), X, LEFT, LEFT)[0]
    cycle, drift = terms(start.expression)
    assert dict(cycle.values)["period_length"] == (3.0,)
    assert dict(drift.values)["lengthscale"][0] == pytest.approx(3 * X.std())
    assert start.expression.factor == 2.0  # pyright: ignore


def test_claims_get_a_value():
    start = grown(
        Hypothesis(parse_expression("rbf(lengthscale=1)"), (Claim("mirror", (0,)),)), None, X, LEFT, LEFT
    )[0]
    assert start.claims[0].value is not None
    assert start.expression == parse_expression("rbf(lengthscale=1)")
