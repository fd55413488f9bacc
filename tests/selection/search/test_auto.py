"""AutoGPRegressor as scikit-learn users see it."""

import re
import warnings
from sys import __displayhook__ as displayhook

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from orbitwise import AutoGPRegressor
from tests.contracts.estimator_contract import assert_follows_scikit_learn

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(1950, 1970, (45, 1))
Y = 40 + 3 * np.sin(2 * np.pi * X[:, 0] / 4) + 0.5 * (X[:, 0] - 1955) + 0.2 * RANDOM.standard_normal(45)


@pytest.fixture(scope="module")
def fitted() -> AutoGPRegressor:
    settings = {"base_kernels": ("periodic", "linear"), "invariances": None, "random_state": 0}
    return AutoGPRegressor(max_depth=1, num_restarts=1, verbose=False, **settings).fit(X, Y)


def test_the_structure_is_found_and_told(fitted: AutoGPRegressor):
    assert sorted(fitted.spelling_.split(" + ")) == ["linear", "periodic"]
    assert fitted.invariance_ is None
    assert fitted.evidence_kind_ == "exact"
    assert np.sqrt(fitted.noise_) == pytest.approx(0.2, rel=0.4)
    text = fitted.summary("years")
    assert "a cycle that repeats every 4" in text
    assert "straight line" in text
    assert f"log evidence {fitted.log_evidence_:,.1f} (exact)" in text
    assert fitted.table().row_count > 2
    best = max(fitted.history_, key=lambda row: row["score"])
    printed = str(fitted.table(most=1))
    for words in ("Structures by score", "numbers learned", best["structure"], f"{best['score']:,.1f}"):
        assert words in printed


def test_the_table_prints_in_a_plain_shell(
    fitted: AutoGPRegressor, capsys: pytest.CaptureFixture[str], monkeypatch
):
    """Text of rows and columns, whether printed or echoed, instead of the name of an object."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    displayhook(fitted.table(most=2))
    echoed = capsys.readouterr().out
    print(fitted.table(most=2))
    for text in (echoed, capsys.readouterr().out):
        assert "object at" not in text
        assert "\x1b" not in text
        (heading,) = (line for line in text.splitlines() if "numbers learned" in line)
        assert all(words in heading for words in ("structure", "score", "step"))
        assert max(map(len, text.splitlines())) <= 120


def test_predictions_go_on_beyond_the_data(fitted: AutoGPRegressor):
    new = np.array([[1973.0], [1974.0]])
    expected = 40 + 3 * np.sin(2 * np.pi * new[:, 0] / 4) + 0.5 * (new[:, 0] - 1955)
    mean, std = fitted.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=0.6)
    assert (std < 0.6).all()
    assert fitted.sample_y(new, 3).shape == (2, 3)


def test_a_line_does_not_enter_a_circle():
    """A sine whose period is claimed: lines around the circle would have two centres."""
    x = np.random.default_rng(0).uniform(0, 10, (40, 1))
    y = np.sin(2 * np.pi * x[:, 0] / 3) + 0.1 * np.random.default_rng(1).standard_normal(40)
    model = AutoGPRegressor(
        base_kernels=("linear", "rbf"), invariances=["period"], max_depth=1, num_restarts=0, verbose=False
    ).fit(x, y)
    assert model.invariance_ is not None
    assert model.invariance_.startswith("period[0]")
    assert "linear" not in model.spelling_


def test_components_add_up(fitted: AutoGPRegressor):
    parts = fitted.components(X)
    assert sorted(part.spelling for part in parts) == ["linear", "periodic"]
    total = sum(part.mean for part in parts) + fitted.mean_
    np.testing.assert_allclose(total, fitted.predict(X), atol=1e-6)
    assert all((part.std > 0).all() for part in parts)
    cycle = next(part for part in parts if part.spelling == "periodic")
    assert "repeats" in cycle.description


def test_a_mirror_is_told():
    y = np.cos(X[:, 0] - 1958) * (X[:, 0] - 1958) ** 2 / 20 + 0.1 * RANDOM.standard_normal(45)
    model = AutoGPRegressor(
        max_depth=0, base_kernels=["rbf"], invariances=["mirror"], num_restarts=1, random_state=0
    ).fit(X, y)
    assert model.invariance_ == "mirror[0]"
    assert "f does not change when x is mirrored about 1958" in model.describe()
    left, right = model.predict(np.array([[1955.0], [2 * model._claims[0][2] - 1955.0]]))
    assert left == pytest.approx(right, abs=1e-6)


def test_rows_beyond_the_limit_are_only_fitted_at_the_end():
    settings = {"max_depth": 0, "base_kernels": ["linear", "rbf"], "invariances": None, "num_restarts": 1}
    model = AutoGPRegressor(search_rows=20, random_state=1, **settings).fit(X, Y)
    assert model.search_rows_ == 20
    assert len(model.posterior_.weights) == 45


def test_every_seed_finds_the_same_structure():
    random = np.random.default_rng(5)
    x = random.uniform(0, 10, (150, 1))
    y = np.sin(3 * x[:, 0]) + 0.4 * x[:, 0] + 0.3 * random.standard_normal(150)
    settings = {"base_kernels": ("rbf", "periodic"), "invariances": None, "max_depth": 0, "verbose": False}
    found = [AutoGPRegressor(search_rows=30, random_state=seed, **settings).fit(x, y) for seed in range(3)]
    assert len({(each.spelling_, each.score_, each.log_evidence_) for each in found}) == 1


def test_dates_become_years():
    dates = (np.datetime64("2000-01-01") + np.arange(0, 4000, 100).astype("timedelta64[D]")).reshape(-1, 1)
    y = np.arange(40.0) + RANDOM.standard_normal(40)
    model = AutoGPRegressor(max_depth=0, base_kernels=["linear"], invariances=None, random_state=0)
    with pytest.warns(UserWarning, match="decimal years"):
        model.fit(dates, y)
    assert model.predict(dates).shape == (40,)
    assert model.predict([[2005.0]])[0] == pytest.approx(18.26, abs=2)
    assert model.dates_


def test_unsorted_repeated_and_constant_data():
    settings = {"max_depth": 0, "base_kernels": ["rbf"], "invariances": None, "num_restarts": 1}
    model = AutoGPRegressor(random_state=0, **settings)
    order = RANDOM.permutation(45)
    first = clone(model).fit(X, Y)
    second = clone(model).fit(X[order], Y[order])
    assert first.log_evidence_ == pytest.approx(second.log_evidence_, abs=0.05)
    repeated = clone(model).fit(np.repeat(X[:15], 2, 0), np.repeat(Y[:15], 2))
    assert np.isfinite(repeated.log_evidence_)
    constant = AutoGPRegressor(random_state=0).fit(X, np.full(45, 7.0))
    assert constant.spelling_ == "constant"
    np.testing.assert_allclose(constant.predict(X), 7.0)


def test_columns_that_matter_little_have_long_lengthscales():
    """One column of three matters, and only where lengthscales are apart does the search need no other."""
    random = np.random.default_rng(4)
    x = random.uniform(-2, 2, (50, 3))
    y = np.sin(3 * x[:, 0]) * np.cos(x[:, 1]) + 0.05 * random.standard_normal(50)
    model = AutoGPRegressor(
        base_kernels=["rbf"], invariances=None, max_depth=0, num_restarts=1, random_state=0, verbose=False
    ).fit(x, y)
    assert model.spelling_ == "rbf(ard)"
    assert re.search(r"changes over about .* in x0, .* in x1 and .* in x2", model.describe())
    first, second, third = model.kernel_.base_kernel.lengthscale.flatten().tolist()
    assert first < second < third


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"scoring": "aic"}, "scoring must be 'bic' or 'laplace', not 'aic'"),
        ({"max_depth": -1}, "max_depth must be a whole number of at least 0"),
        ({"search_rows": 3}, "search_rows must be a whole number of at least 10"),
        ({"max_seconds": 0}, "max_seconds must be positive"),
        ({"base_kernels": "rbf"}, "base_kernels must be a list of names"),
        ({"base_kernels": ["rbff"]}, "Unknown kernel 'rbff'. Did you mean 'rbf'"),
        ({"invariances": ["miror"]}, "Did you mean 'mirror'"),
        ({"max_seconds": 1e-9}, "allow more time"),
    ],
)
def test_bad_settings(settings: dict, problem: str):
    model = AutoGPRegressor().set_params(**settings)
    with pytest.raises((ValueError, TimeoutError), match=problem):
        model.fit(X, Y)


@pytest.mark.parametrize("limit", [60, 400])
def test_time_that_is_up_is_kept_and_said(limit, monkeypatch):
    """A second passes with every matrix that is factorised, as each evaluation does."""
    seconds = 0.0
    compute = torch.linalg.cholesky_ex

    def slow(*arguments, **options):
        nonlocal seconds
        seconds += 1
        return compute(*arguments, **options)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", slow)
    settings = {"base_kernels": ("rbf", "periodic", "linear"), "random_state": 0, "search_rows": 30}
    model = AutoGPRegressor(max_seconds=limit, max_depth=20, verbose=False, **settings)
    model._clock = lambda: seconds
    with pytest.warns(ConvergenceWarning, match=rf"cut short by max_seconds={limit}, .* Raise max_seconds"):
        model.fit(X, Y)
    assert model.stopped_ == "time_limit"
    assert not model.converged_
    assert limit <= seconds < limit + 40, "starts are made of factors too, and the winner is conditioned"
    assert np.isfinite(model.predict(X, return_std=True)).all()


def test_a_search_within_its_time_is_complete():
    model = AutoGPRegressor(
        max_depth=0, base_kernels=["linear"], invariances=None, max_seconds=10, verbose=False
    )
    model._clock = lambda: 0.0
    assert model.fit(X, Y).stopped_ == "complete"


def test_bad_data():
    with pytest.raises(ValueError, match=r"at least 10 rows, but X has n_samples=9: .*InvariantGPRegressor"):
        AutoGPRegressor().fit(X[:9], Y[:9])
    with pytest.raises(ValueError, match="NaN"):
        AutoGPRegressor().fit(X, np.where(Y > 43, np.nan, Y))


def test_it_works_in_a_pipeline_without_a_word(capsys):
    settings = {"max_depth": 0, "base_kernels": ["rbf"], "invariances": None, "num_restarts": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = make_pipeline(StandardScaler(), AutoGPRegressor(random_state=0, **settings)).fit(X, Y)
    assert model.score(X, Y) > 0.5
    assert capsys.readouterr() == ("", "")


def test_it_follows_scikit_learn():
    quick = {"max_depth": 0, "base_kernels": ("rbf",), "invariances": None, "num_restarts": 0}
    assert_follows_scikit_learn(AutoGPRegressor(random_state=0, **quick))
