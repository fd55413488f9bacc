"""The airline experiment at a small size: the split, the starts, the choice by evidence, and the record."""

import json

import numpy as np
import pytest
from gpytorch.kernels import SpectralMixtureKernel

from orbitwise.experiments import airline
from orbitwise.experiments.airline import Series, judge, run_start, starts, summarise

# Few iterations or inducing variables are enough for what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def made_up(count: int = 90) -> Series:
    """Growth, a year's cycle and a little noise, on the logarithmic scale."""
    x = np.arange(count)[:, None] / 12
    y = 5 + 0.08 * x[:, 0] + 0.2 * np.sin(2 * np.pi * x[:, 0])
    passengers = np.exp(y + 0.02 * np.random.default_rng(0).normal(size=count))
    split = 2 * count // 3
    return Series(x[:split], passengers[:split], x[split:], passengers[split:])


def test_every_start_has_a_name_and_seeds_move_it():
    kernels = starts(made_up(), (2, 3), 2)
    assert len(kernels) == len(airline.LENGTHSCALES) + 2 * 3
    found, moved = kernels["sm(3), spectrum"], kernels["sm(3), seed 0"]
    assert isinstance(found, SpectralMixtureKernel)
    assert found.num_mixtures == 3
    assert not np.allclose(found.mixture_scales.detach(), moved.mixture_scales.detach())
    nearest = (found.mixture_means.detach().flatten() - 1).abs().min().item()
    assert nearest < 0.05, "one component sits at one cycle a year"


def test_judgement_is_that_of_a_slow_loop():
    class Constant:
        def predict(self, X, *, return_std, include_noise):
            assert return_std
            assert include_noise
            return np.full(len(X), 5.0), np.full(len(X), 0.5)

    x = np.zeros((3, 1))
    passengers = np.exp([5.0, 5.3, 7.0])
    found = judge(Constant(), Series(x, passengers, x, passengers))
    residuals = [0.0, 0.3, 2.0]
    assert found["rmse"] == pytest.approx(np.sqrt(sum(r**2 for r in residuals) / 3))
    differences = [np.exp(5 + r) - np.exp(5) for r in residuals]
    assert found["rmse_passengers"] == pytest.approx(np.sqrt(sum(d**2 for d in differences) / 3))
    assert found["coverage"] == pytest.approx(2 / 3)
    normal = [-0.5 * (r / 0.5) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi) for r in residuals]
    assert found["log_density"] == pytest.approx(sum(normal) / 3)


def test_a_spectral_mixture_goes_on_where_an_rbf_forgets():
    series = made_up()
    kernels = starts(series, (3,), 0)
    wave = run_start(kernels["sm(3), spectrum"], series, 60)
    smooth = run_start(kernels["rbf, lengthscale 0.3"], series, 60)
    assert wave["log_evidence"] > smooth["log_evidence"] + 20
    assert wave["rmse"] < 0.5 * smooth["rmse"]
    # noise, 3 components of three numbers each
    assert wave["bic"] == pytest.approx(wave["log_evidence"] - 5 * np.log(60))


def test_the_choice_is_by_evidence_and_not_by_error():
    def outcome(evidence: float, rmse: float) -> dict:
        keys = ("rmse_passengers", "coverage", "log_density")
        return {"log_evidence": evidence, "bic": -evidence, "rmse": rmse, **dict.fromkeys(keys, 0.0)}

    fits = {
        "rbf, a": outcome(5, 0.8),
        "rbf, b": outcome(4, 0.1),
        "sm(2), c": outcome(9, 0.3),
        "sm(2), spectrum": outcome(8, 0.2),
        "sm(2), e": outcome(7, 0.5),
    }
    summary = summarise(fits)
    assert summary["rbf"]["by_evidence"]["start"] == "rbf, a"
    assert summary["rbf"]["least_error"]["start"] == "rbf, b"
    assert summary["sm"]["by_evidence"]["start"] == "sm(2), c"
    assert summary["sm"]["by_bic"]["start"] == "sm(2), e"
    assert summary["ratio"] == pytest.approx(0.3 / 0.8)
    assert summary["ratio_to_least_error_of_rbf"] == pytest.approx(0.3 / 0.1)
    assert summary["sm"]["by_evidence_from_spectrum"]["start"] == "sm(2), spectrum"
    assert summary["share_of_starts_that_halve"] == pytest.approx(2 / 3)


def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(airline, "load", made_up)
    monkeypatch.setattr(airline, "LENGTHSCALES", (0.3,))
    out = tmp_path / "record.json"
    arguments = ["--mixtures", "2", "--seeds", "0", "--iterations", "3", "--out", str(out)]
    airline.main(arguments)
    record = json.loads(out.read_text())
    assert set(record["fits"]) == {"rbf, lengthscale 0.3", "sm(2), spectrum"}
    record["fits"]["rbf, lengthscale 0.3"]["rmse"] = 123.0
    del record["fits"]["sm(2), spectrum"]
    out.write_text(json.dumps(record))
    airline.main(arguments)
    again = json.loads(out.read_text())
    assert again["summary"]["rbf"]["by_evidence"]["rmse"] == 123.0
    assert again["summary"]["sm"]["by_evidence"]["start"] == "sm(2), spectrum"


@pytest.mark.requires_data("airline_passengers")
def test_the_series_is_split_after_two_thirds():
    series = airline.load()
    assert len(series.x_train) == 96
    assert len(series.x_test) == 48
    assert series.x_test[0, 0] == pytest.approx(8.0, abs=0.01)
    np.testing.assert_allclose(series.y_train, np.log(series.passengers_train))
    assert series.passengers_train[0] == 112
    assert series.passengers_test[-1] == 432
