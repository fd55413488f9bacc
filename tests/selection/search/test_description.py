"""Plain words for structures."""

import numpy as np
import pytest

from orbitwise.kernels.spelling import parse_expression
from orbitwise.selection.search.description import Words, claim_sentence, component_phrase, summary
from orbitwise.selection.search.hypotheses import Claim

ONE = Words(["x"], np.array([40.0]), "years")
TWO = Words(["height", "width"], np.array([4.0, 4.0]))


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("rbf(lengthscale=12)", "a smooth trend that changes over about 12 years"),
        ("rbf(lengthscale=2)", "a smooth variation that changes over about 2 years"),
        ("rq(lengthscale=1.5)", "a smooth variation that changes at many scales around 1.5 years"),
        ("matern12(lengthscale=1)", "a rough variation that changes over about 1 years"),
        ("periodic(period=1.001)", "a yearly cycle"),
        ("periodic(period=11)", "a cycle that repeats every 11 years"),
        ("cosine(period=5.5)", "a cycle that repeats every 11 years (a pure wave)"),
        ("rbf(lengthscale=80)*periodic(period=1)", "a yearly cycle whose shape drifts over about 80 years"),
        (
            "periodic(period=1)*periodic(period=7)",
            "a yearly cycle, modulated by a cycle that repeats every 7 years",
        ),
        ("linear(centre=1900)*periodic", "a yearly cycle, growing with the distance from x = 1900"),
        ("linear", "a straight line"),
        ("linear*linear", "a quadratic trend"),
        ("linear^4", "a polynomial trend of degree 4"),
        ("constant", "a constant"),
        ("sm(3)", "a mixture of 3 spectral lines"),
        (
            "polynomial(3)*rbf(lengthscale=10)",
            "a smooth trend that changes over about 10 years, times a polynomial of degree 3",
        ),
        ("arc", "a component of the kernel arc"),
    ],
)  # fmt: skip
def test_phrases(text: str, phrase: str):
    assert component_phrase(parse_expression(text), ONE) == phrase


def test_columns_are_named():
    phrase = component_phrase(parse_expression("rbf[0](lengthscale=2)*linear[1]"), TWO)
    assert phrase == "a smooth trend that changes over about 2 in height, times a straight line in width"
    both = component_phrase(parse_expression("rbf(lengthscale=(2, 2))"), TWO)
    assert both == "a smooth trend that changes over about 2 in height and width"


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        (Claim("mirror", (0,), 2.5), "f does not change when height is mirrored about 2.5."),
        (Claim("odd", (1,), 0.0), "f changes its sign when width is mirrored about 0."),
        (Claim("period", (1,), 3.0), "f repeats itself exactly every 3 in width."),
        (Claim("swap", (0, 1)), "f does not change when height and width are exchanged."),
        (Claim("permutation"), "f does not depend on the order of height and width."),
    ],
)
def test_claims(claim: Claim, sentence: str):
    assert claim_sentence(claim, TWO) == sentence


def test_the_strongest_component_comes_first():
    parts = [parse_expression("periodic(period=1)"), parse_expression("linear")]
    text = summary(parts, [0.2, 0.7], [Claim("mirror", (0,), 1.0)], ONE, 0.5)
    assert text == (
        "A straight line (70% of the variance); plus a yearly cycle (20% of the variance). "
        "f does not change when x is mirrored about 1. Noise has a standard deviation of 0.5."
    )


def test_lengthscales_of_each_column_are_told():
    phrase = component_phrase(parse_expression("rbf(ard, lengthscale=(0.5, 30))", 2), TWO)
    assert phrase == "a smooth variation that changes over about 0.5 in height and 30 in width"
