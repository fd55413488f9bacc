"""Sums and products as plain data, and when two of them mean the same."""

import pytest

from orbitwise.kernels.spelling import (
    Expression,
    Sum,
    Term,
    add,
    multiply,
    normal_form,
    parse_expression,
    summands,
    terms,
)

RBF, RQ = Term("rbf"), Term("rq")


def equivalent(left: Expression, right: Expression, num_dims: int | None = None) -> bool:
    return normal_form(left, num_dims) == normal_form(right, num_dims)


def test_sums_and_products_are_flattened_and_factors_joined():
    assert add(add(RBF, RQ), RBF) == Sum((RBF, RQ, RBF))
    assert multiply(multiply(RBF, RQ, factor=2.0), RBF, factor=3.0) == multiply(RBF, RQ, RBF, factor=6.0)
    assert add(RBF) is RBF
    assert multiply(RBF) is RBF


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("rbf + rq", "rq + rbf", True),
        ("rbf*periodic", "periodic*rbf", True),
        ("(rbf + linear)*periodic", "linear*periodic + rbf*periodic", True),
        ("rbf*rbf", "rbf", True),
        ("3*rbf(lengthscale=2)", "rbf", True),
        ("constant*rbf", "rbf", True),
        ("constant*constant", "constant", True),
        ("rbf + rbf", "rbf", False),
        ("linear*linear", "linear", False),
        ("rbf[0]", "rbf[1]", False),
        ("sm(2)", "sm(3)", False),
        ("rbf + periodic", "rbf*periodic", False),
        ("rbf + constant", "rbf", False),
        ("periodic*periodic", "periodic", False),
    ],
)
def test_equivalence(left: str, right: str, same: bool):
    assert equivalent(parse_expression(left), parse_expression(right)) is same


def test_components_and_terms_are_listed():
    expression = parse_expression("(rbf + linear)*(periodic + rq)")
    assert [str(each) for each in summands(expression)] == [
        "rbf*periodic",
        "rbf*rq",
        "linear*periodic",
        "linear*rq",
    ]
    assert [term.name for term in terms(expression)] == ["rbf", "linear", "periodic", "rq"]
    assert normal_form(parse_expression("rbf*periodic*rbf + 2")) == (("constant",), ("periodic", "rbf"))


def test_an_rbf_of_several_columns_is_a_product():
    left, right = parse_expression("rbf + rq[0,1]"), parse_expression("rq[0,1] + rbf[1]*rbf[0]")
    assert equivalent(left, right, num_dims=2)
    assert not equivalent(left, right)
    assert equivalent(parse_expression("rbf[0]"), parse_expression("rbf"), num_dims=1)
