"""The Mauna Loa experiment on made-up months: the split, the scores, the decomposition, and the record."""

import json

import numpy as np
import pytest
import torch
from gpytorch.kernels import PeriodicKernel
from scipy.stats import norm

from orbitwise.experiments import mauna_loa
from orbitwise.experiments.mauna_loa import Series, averaged, described, growth, judge, rebuilt
from orbitwise.selection.mixtures import PredictiveMixture


def made_up(end: int = 2004, every: int = 1) -> Series:
    """Quarters from 1990 to 2026 of something that accelerates, with a season."""
    years = np.arange(1990, 2026, 0.25) + 0.125
    noise = 0.2 * np.random.default_rng(0).normal(size=len(years))
    ppm = 350 + 1.5 * (years - 1990) + 0.02 * (years - 1990) ** 2 + 3 * np.sin(2 * np.pi * years) + noise
    return Series.of(years, ppm, end, every)


class Straight:
    """A prediction with a slope of 1 a year after the end of training, and a deviation of 2."""

    def __init__(self, level: float = 0.0) -> None:
        self.level = level

    def predict(self, X, return_std=False, include_noise=False):
        mean = self.level + X[:, 0]
        return (mean, np.full(len(X), 2.0)) if return_std else mean


def twenty_years() -> Series:
    ahead = (np.arange(240) + 0.5) / 12
    measured = ahead + 0.01 * ahead**2
    return Series(2004, 2004.0, 0.0, np.zeros((1, 1)), np.zeros(1), ahead[:, None], measured)


def test_training_months_come_first_and_are_centred():
    series = made_up(every=2)
    assert len(series.x_train) == 28
    assert abs(series.x_train.mean()) < 0.51
    assert abs(series.y_train.mean()) < 1e-9
    assert series.years_ahead.min() == pytest.approx(0.125)
    assert series.x_train.max() + series.origin < 2004
    whole = made_up()
    assert len(whole.x_train) + len(whole.x_test) == 36 * 4


@pytest.mark.parametrize("trend", mauna_loa.TRENDS)
def test_every_trend_has_the_other_components_and_a_fixed_year(trend):
    kernel = mauna_loa.kernel_of(trend)
    seasons = [module for module in kernel.modules() if isinstance(module, PeriodicKernel)]
    assert [season.period_length.item() for season in seasons] == [1.0]
    assert not seasons[0].raw_period_length.requires_grad
    assert seasons[0].raw_lengthscale.requires_grad
    x = torch.linspace(-20, 20, 41, dtype=torch.float64)[:, None]
    variance = kernel(x, diag=True)
    # every trend starts with many ppm
    assert variance.min().item() > 100
    assert variance.max().item() < 20_000


def test_scores_are_those_of_slow_loops():
    series = twenty_years()
    scores = judge(PredictiveMixture([Straight()], np.ones(1)), series)
    assert set(scores) == {"5", "10", "20"}
    for horizon in (5, 10, 20):
        residuals = [0.01 * ahead**2 for ahead in series.years_ahead if ahead < horizon]
        found = scores[str(horizon)]
        assert found["months"] == 12 * horizon == len(residuals)
        assert found["rmse"] == pytest.approx(np.sqrt(np.mean(np.square(residuals))))
        assert found["coverage"] == pytest.approx(np.mean([abs(r) < 1.959964 * 2 for r in residuals]))
        assert found["log_density"] == pytest.approx(np.mean([norm.logpdf(r, 0, 2) for r in residuals]))
        assert found["bias_of_last_year"] == pytest.approx(np.mean(residuals[-12:]))
        assert found["band_of_last_year"] == pytest.approx(2 * 1.959964 * 2)
    assert scores["20"]["coverage"] < scores["10"]["coverage"] == 1


def test_horizons_beyond_the_data_are_left_out():
    series = twenty_years()
    short = Series(
        2004, 2004.0, 0.0, series.x_train, series.y_train, series.x_test[:130], series.y_test[:130]
    )
    assert set(judge(PredictiveMixture([Straight()], np.ones(1)), short)) == {"5", "10"}


def test_growth_shows_an_acceleration_that_is_missed():
    rates = growth(PredictiveMixture([Straight()], np.ones(1)), twenty_years())
    assert rates["predicted_first"] == pytest.approx(1)
    assert rates["predicted_last"] == pytest.approx(1)
    # of t + 0.01 t², between the middles of years 0 and 5: 1 + 0.01 (0.5 + 5.5), and of 14 and 19
    assert rates["measured_first"] == pytest.approx(1.06)
    assert rates["measured_last"] == pytest.approx(1.34)


@pytest.fixture(scope="module")
def model():
    return mauna_loa.fit("linear + rbf", made_up(), max_iterations=15)


def test_components_add_up_to_the_prediction(model):
    series = made_up()
    parts = mauna_loa.decompose(model, series.x_test)
    assert list(parts) == ["trend", "season", "irregularities", "correlated noise"]
    total = sum(part.mean[:, 0] for part in parts.values())
    np.testing.assert_allclose(total, model.predict(series.x_test), atol=1e-8)
    # the season of these months is a sine of amplitude 3
    inside = mauna_loa.decompose(model, series.x_train)["season"].mean[:, 0].numpy()
    wave = 3 * np.sin(2 * np.pi * (series.x_train[:, 0] + series.origin))
    assert np.corrcoef(inside, wave)[0, 1] > 0.98


def test_descriptions_are_rebuilt_to_the_same_predictions(model):
    series = made_up()
    other = mauna_loa.fit("quadratic", series, max_iterations=3)
    mixture = PredictiveMixture([model, other], np.array([0.25, 0.75]))
    again = rebuilt(json.loads(json.dumps(described(mixture))), series)
    np.testing.assert_allclose(again.weights, mixture.weights)
    for one, two in zip(
        mixture.predict(series.x_test, return_std=True, include_noise=True),
        again.predict(series.x_test, return_std=True, include_noise=True),
        strict=True,
    ):
        np.testing.assert_allclose(one, two, rtol=1e-6)


def test_hyperparameters_that_are_integrated_out_widen_the_band(model):
    series = made_up()
    facts, mixture = mauna_loa.marginalise(model, 50, 6)
    assert len(described(mixture)) >= 3
    assert facts["log_evidence"] < model.log_evidence_, "an average is below the maximum"
    assert facts["effective_draws"] > 2
    spread = np.std([member.predict(series.x_test)[-1] for member in mixture.members])
    assert spread > 0


def at_the_optimum(model, num_draws, num_members):
    """Stands in for the integral over hyperparameters, which is tested above and slow."""
    return {"log_evidence": model.log_evidence_}, PredictiveMixture([model], np.ones(1))


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(mauna_loa, "load", made_up)
    shorter = mauna_loa.fit
    monkeypatch.setattr(mauna_loa, "fit", lambda trend, series, restarts: shorter(trend, series, 0, 4))
    monkeypatch.setattr(mauna_loa, "marginalise", at_the_optimum)
    out = tmp_path / "record.json"
    arguments = ["--trends", "rbf", "quadratic", "--draws", "60", "--members", "3", "--out", str(out)]
    mauna_loa.main(arguments)
    record = json.loads(out.read_text())["2004"]
    assert set(record["models"]) == {"rbf", "quadratic"}
    assert sum(record["average"]["probabilities"].values()) == pytest.approx(1)
    evidence = {name: each["marginalised"]["log_evidence"] for name, each in record["models"].items()}
    odds = record["average"]["probabilities"]["quadratic"] / record["average"]["probabilities"]["rbf"]
    assert np.log(odds) == pytest.approx(evidence["quadratic"] - evidence["rbf"])

    record["models"]["rbf"]["marginalised"]["log_evidence"] += 1000.0
    del record["models"]["quadratic"]
    out.write_text(json.dumps({"2004": record}))
    mauna_loa.main(arguments)
    again = json.loads(out.read_text())["2004"]
    assert again["models"]["rbf"] == record["models"]["rbf"]
    assert again["average"]["probabilities"]["rbf"] == pytest.approx(1)
    # all weight on one trend: the average is that trend
    series = made_up()
    alone = rebuilt(again["models"]["rbf"]["marginalised"]["members"], series)
    mixture = averaged(again["models"], again["average"]["probabilities"], series)
    np.testing.assert_allclose(mixture.predict(series.x_test), alone.predict(series.x_test))
    assert again["average"]["scores"]["20"] == pytest.approx(
        again["models"]["rbf"]["marginalised"]["scores"]["20"], rel=1e-6
    )


@pytest.mark.requires_data("co2_mauna_loa")
def test_the_months_of_mauna_loa_are_split_after_2003():
    series = mauna_loa.load()
    assert len(series.x_train) == 550
    assert series.years_ahead.min() == pytest.approx(0.04, abs=0.02)
    assert series.years_ahead.max() > 22
    assert 315 < series.y_train[0] + series.shift < 316.5
    assert len(mauna_loa.load(1984, 3).x_train) == 104
