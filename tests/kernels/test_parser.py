"""The grammar: what a text means, and where it goes wrong."""

import pytest

from orbitwise.kernels.spelling import Parser, SpellingError, Term, tokens_of


def read(text: str, num_dims: int | None = None) -> str:
    return str(Parser(text, num_dims).whole())


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("rbf*periodic + rq + linear", "rbf*periodic + rq + linear"),
        ("se + LIN", "rbf + linear"),
        ("(rbf + (rq + linear))", "rbf + rq + linear"),
        ("2*rbf*3", "6*rbf"),
        ("rbf^2", "rbf*rbf"),
        ("(rbf + rq)**2", "(rbf + rq)*(rbf + rq)"),
        ("2^2*rbf", "4*rbf"),
        ("rbf + 2", "rbf + constant(constant=2)"),
        ("rbf(dims=0, 2)", "rbf[0,2]"),
        ("rbf(dims=0,2, lengthscale=3)", "rbf[0,2](lengthscale=3)"),
        ("rbf(lengthscale=3)[1]", "rbf[1](lengthscale=3)"),
        ("rbf[1,0](ard, lengthscale=1,2)", "rbf[1,0](ard, lengthscale=(1, 2))"),
        ("linear(center=-1.5)", "linear(centre=-1.5)"),
        ("periodic(period=12)", "periodic(period_length=12)"),
        ("sm", "sm(4)"),
        ("sm(3) + polynomial3 + poly(2)", "sm(3) + polynomial(3) + polynomial(2)"),
        ("matern52 + exponential", "matern52 + matern12"),
    ],
)
def test_meanings(text: str, meaning: str):
    assert read(text) == meaning
    assert read(meaning) == meaning


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "The text is empty"),
        ("rbf*", 4, "Expected a kernel, a number or '\\('"),
        ("rbf rq", 4, "Expected '\\+', '\\*' or the end, not 'rq'"),
        ("rbf + (rq", 9, "Expected '\\)', not 'the end'"),
        ("rbf + rqq", 6, "Unknown kernel 'rqq'. Did you mean 'rq'\\?"),
        ("rbf + zzz", 6, "Unknown kernel 'zzz'. Known are arc"),
        ("rbf(lenghtscale=2)", 4, "no argument 'lenghtscale'; Did you mean 'lengthscale'\\?"),
        ("rbf(lengthscale 2)", 16, "Expected '='"),
        ("rbf(lengthscale=x)", 16, "Expected a number for lengthscale, not 'x'"),
        ("rbf(lengthscale=0)", 16, "lengthscale must be positive, not 0"),
        ("rbf(lengthscale=2 rq", 18, "Expected ',' or '\\)'"),
        ("rbf(3)", 4, "rbf takes no plain number; name it, as in rbf\\(lengthscale=2\\)"),
        ("cosine(ard)", 7, "cosine has no lengthscale for each column"),
        ("sm(0)", 3, "num_mixtures of sm must be between 1 and 100, not 0"),
        ("rbf^0", 4, "A power must be a whole number between 1 and 8"),
        ("-2*rbf", 0, "it must be positive"),
        ("rbf - rq", 4, "Expected '\\+'"),
        ("rbf[3]", 4, "A column must be a whole number between 0 and 2, not '3'"),
        ("rbf[1,1]", 6, "Column 1 is named twice"),
        ("rbf + noise", 6, "estimators learn the noise"),
        ("(" * 60, 50, "nested more than 50 deep"),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, position: int, problem: str):
    with pytest.raises(SpellingError, match=problem) as caught:
        Parser(text, 3).whole()
    assert caught.value.position == position


def test_a_term_is_plain_data():
    assert Parser("rbf[2](lengthscale=2)", 3).whole() == Term("rbf", (2,), None, (("lengthscale", (2.0,)),))


def test_words_have_kinds_and_places():
    found = tokens_of("rbf(a=-1e-3)**2 +2")
    assert [(each.kind, each.text) for each in found] == [
        ("name", "rbf"),
        ("mark", "("),
        ("name", "a"),
        ("mark", "="),
        ("number", "-1e-3"),
        ("mark", ")"),
        ("mark", "**"),
        ("number", "2"),
        ("mark", "+"),
        ("number", "2"),
        ("end", "the end"),
    ]
    assert [each.position for each in found] == [0, 3, 4, 5, 6, 11, 12, 14, 16, 17, 18]


def test_the_caret_stands_under_the_character():
    with pytest.raises(SpellingError) as caught:
        tokens_of("rbf +\n ? rq")
    first, text, caret = str(caught.value).splitlines()
    assert "'?' has no meaning" in first
    assert text[caret.index("^")] == "?"
    assert caught.value.position == 7
