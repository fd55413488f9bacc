"""The grammar: neighbours, simplifications, and when two hypotheses are one."""

import pytest

from orbitwise.kernels.spelling import parse_expression
from orbitwise.selection.search.hypotheses import (
    Claim,
    Hypothesis,
    base_terms,
    claims_of,
    first_hypotheses,
    neighbours,
    simplifications,
    with_one_more_claim,
    without_values,
)


def made(text: str, *claims: str, num_dims: int = 2) -> Hypothesis:
    return Hypothesis(parse_expression(text), tuple(claims_of(list(claims), num_dims)))


def test_base_kernels_of_columns():
    assert [str(each) for each in base_terms(["rbf", "linear"], 1)] == ["rbf", "linear"]
    assert [str(each) for each in base_terms(["rbf", "linear"], 2)] == [
        *("rbf", "rbf[0]", "rbf[1]", "linear[0]", "linear[1]")
    ]
    assert [str(each) for each in base_terms(["se[1]", "sm3"], 2)] == [
        "rbf[1]",
        "sm(3)",
        "sm[0](3)",
        "sm[1](3)",
    ]
    with pytest.raises(ValueError, match="one name, such as 'rbf', not 'rbf\\*rq'"):
        base_terms(["rbf*rq"], 1)


def test_neighbours_are_one_step_away_and_keep_values():
    start = made("rbf(lengthscale=2) + linear", num_dims=1)
    found = {
        str(each): new
        for each, new in neighbours(start, base_terms(["periodic"], 1), claims_of(["mirror"], 1))
    }
    assert set(found) == {
        "rbf + linear + periodic",
        "(rbf + linear)*periodic",
        "rbf*periodic + linear",
        "rbf + linear*periodic",
        "periodic + linear",
        "rbf + periodic",
        "rbf + linear | mirror[0]",
    }
    assert str(found["rbf + periodic"]) == "periodic"
    assert found["rbf + linear | mirror[0]"] is None
    grown = next(each for each, _ in neighbours(start, base_terms(["periodic"], 1), []))
    assert str(grown.expression) == "rbf(lengthscale=2) + linear + periodic"


def test_without_growth_kernels_are_only_exchanged():
    start = made("rbf + linear", "mirror[0]", num_dims=1)
    options = [str(each) for each, _ in neighbours(start, base_terms(["rq"], 1), [], grows=False)]
    assert options == ["rq + linear | mirror[0]", "rbf + rq | mirror[0]", "rbf + linear"]
    assert start.size == 3


def test_lines_and_cycles_do_not_enter_a_circle():
    start = made("rbf[0] + rbf[1]", "period[0]")
    bases = base_terms(["linear", "periodic", "rq"], 2)
    new = {str(base) for _, base in neighbours(start, bases, []) if base is not None}
    assert new == {"linear[1]", "periodic[1]", "rq", "rq[0]", "rq[1]"}


def test_a_factor_may_become_a_component():
    start = made("linear + 4*rbf(lengthscale=2)*periodic(period=3)", num_dims=1)
    found = [each for each, _ in neighbours(start, [], [], grows=False)]
    assert [str(each.expression) for each in found] == [
        "linear + 2*periodic(period_length=3) + 2*rbf(lengthscale=2)",
        "linear + 2*rbf(lengthscale=2) + 2*periodic(period_length=3)",
    ]
    assert not list(neighbours(made("2*rbf + linear", num_dims=1), [], [], grows=False))


def test_claims_come_and_go_but_do_not_contradict_each_other():
    start = made("rbf", "mirror[0]", num_dims=1)
    options = [str(each) for each, _ in neighbours(start, [], claims_of("auto", 1))]
    assert options == ["rbf", "rbf | mirror[0] | period[0]"]
    periodic = made("periodic + linear", num_dims=1)
    wrapped = [str(each) for each, _ in neighbours(periodic, [], claims_of(["period"], 1))]
    assert wrapped == ["rbf + rbf | period[0]"]


def test_products_do_not_grow_for_ever():
    start = made("rbf*periodic*linear", num_dims=1)
    options = [str(each) for each, _ in neighbours(start, base_terms(["rq"], 1), [])]
    assert "rbf*periodic*linear*rq" not in options


def test_simplifications_take_one_thing_away():
    start = made("2*rbf*periodic + linear", "mirror[0]", num_dims=1)
    assert {str(each) for each in simplifications(start)} == {
        "linear | mirror[0]",
        "rbf*periodic | mirror[0]",
        "rbf + linear | mirror[0]",
        "periodic + linear | mirror[0]",
        "rbf*periodic + linear",
    }
    assert list(simplifications(made("rbf"))) == []


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (made("rbf + linear"), made("linear + rbf"), True),
        (made("rbf"), made("rbf", "mirror[0]"), False),
        (made("rbf", "mirror[0]", "swap[0,1]"), made("rbf", "swap[0,1]", "mirror[0]"), True),
        (made("rbf", "period[0]", num_dims=1), made("periodic", num_dims=1), True),
        (made("rq", "period[0]", num_dims=1), made("periodic", num_dims=1), False),
        (made("rbf[0]", "swap[0,1]"), made("rbf[1]", "swap[0,1]"), True),
        (made("rbf[0] + rbf[1]", "swap[0,1]"), made("rbf[1]", "swap[0,1]"), True),
        (made("rbf[0]*linear[1]", "swap[0,1]"), made("rbf[1]*linear[0]", "swap[0,1]"), True),
        (made("rbf[0]*linear[1]", "swap[0,1]"), made("rbf[0]*linear[0]", "swap[0,1]"), False),
        (made("rbf", "swap[0,1]"), made("rbf[0]*rbf[1]", "swap[0,1]"), True),
        (made("rbf[0]"), made("rbf[1]"), False),
    ],
)
def test_equal_structures(left: Hypothesis, right: Hypothesis, same: bool):
    dims = 1 if "period" in f"{left}{right}" else 2
    assert (left.structure(dims) == right.structure(dims)) is same


def test_learned_values_do_not_count():
    one = Hypothesis(parse_expression("3*rbf(lengthscale=2)"), (Claim("mirror", (0,), 1.0),), 0.1)
    assert one.key == made("rbf", "mirror[0]").key
    assert str(one) == "rbf | mirror[0]"
    assert (
        str(without_values(parse_expression("2*rbf(lengthscale=2)*(rq + 3*linear)"))) == "rbf*(rq + linear)"
    )


def test_a_search_begins_with_a_lengthscale_for_each_of_several_columns():
    starts = first_hypotheses(base_terms(["rbf"], 2), 2)
    assert [str(each) for each in starts] == ["rbf", "rbf[0]", "rbf[1]", "rbf(ard)"]
    assert len({each.key for each in starts}) == 4
    # both describe f, up to what is learned
    assert starts[-1].structure(2) == starts[0].structure(2)
    assert [str(each) for each in first_hypotheses(base_terms(["rbf"], 1), 1)] == ["rbf"]
    assert [str(each) for each in first_hypotheses(base_terms(["rq"], 2), 2)] == ["rq", "rq[0]", "rq[1]"]
    # lengthscales for each column do not enter a circle
    names = [str(each) for each, _ in with_one_more_claim(starts[-1], claims_of(["period", "swap"], 2))]
    assert names == ["rbf(ard) | swap[0,1]"]
