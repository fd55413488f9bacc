"""The Mauna Loa experiment on made-up months: trends, the decomposition, averages, and the record."""

import json

import numpy as np
import pytest
import torch
from gpytorch.kernels import PeriodicKernel

from orbitwise.experiments import mauna_loa
from orbitwise.experiments.mauna_loa import Series, averaged, described, rebuilt
from orbitwise.selection.model_posterior import PredictiveMixture

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def made_up(end: int = 2004, every: int = 1) -> Series:
    """Quarters from 1990 to 2026 of something that accelerates, with a season."""
    years = np.arange(1990, 2026, 0.25) + 0.125
    noise = 0.2 * np.random.default_rng(0).normal(size=len(years))
    ppm = 350 + 1.5 * (years - 1990) + 0.02 * (years - 1990) ** 2 + 3 * np.sin(2 * np.pi * years) + noise
    return Series.of(years, ppm, end, every)


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


def test_the_season_is_seen_beside_the_mean_of_its_year(model):
    x = made_up().x_train[8:20]
    months = (np.arange(12) - 5.5) / 12
    year = np.mean([model.predict(x + month) for month in months], axis=0)
    parts = mauna_loa.decompose(model, x, mauna_loa.seasonal())
    total = sum(part.mean[:, 0] for part in parts.values())
    np.testing.assert_allclose(total, model.predict(x) - year, atol=1e-8)
    # a constant that season and trend may exchange does not blur it
    alone = mauna_loa.decompose(model, x)["season"].variance
    assert bool((parts["season"].variance < alone).all())


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
