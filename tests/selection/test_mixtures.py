"""Mixtures of predictions: moments and quantiles against draws, densities against sums, bad weights."""

import numpy as np
import pytest
from scipy.stats import norm

from orbitwise.selection.model_posterior import PredictiveMixture


class Member:
    """A regressor that knows its answer."""

    def __init__(self, mean: float, deviation: float, noise: float = 0.5) -> None:
        self.mean, self.deviation, self.noise = mean, deviation, noise
        self.calls = 0

    def predict(self, X, return_std: bool = False, include_noise: bool = False):
        self.calls += 1
        mean = self.mean + 0 * np.asarray(X, float)[:, 0]
        variance = self.deviation**2 + include_noise * self.noise**2
        return (mean, np.full_like(mean, np.sqrt(variance))) if return_std else mean


X = np.zeros((3, 1))
WEIGHTS = np.array([0.2, 0.5, 0.3])
MEMBERS = [Member(-1.0, 0.4), Member(0.5, 1.0), Member(3.0, 0.2)]


def drawn(include_noise: bool) -> np.ndarray:
    rng = np.random.default_rng(0)
    kind = rng.choice(3, size=400_000, p=WEIGHTS)
    moments = [(m.mean, np.sqrt(m.deviation**2 + include_noise * m.noise**2)) for m in MEMBERS]
    means, deviations = (np.array(each)[kind] for each in zip(*moments, strict=True))
    return means + deviations * rng.normal(size=len(kind))


@pytest.mark.parametrize("include_noise", [False, True])
def test_moments_and_quantiles_are_those_of_draws(include_noise: bool):
    mixture = PredictiveMixture(MEMBERS, WEIGHTS)
    draws = drawn(include_noise)
    mean, deviation = mixture.predict(X, return_std=True, include_noise=include_noise)
    assert mean.shape == (3,)
    assert abs(mean[0] - draws.mean()) < 4 * draws.std() / 630
    assert deviation[0] == pytest.approx(draws.std(), rel=0.01)
    for level in (0.025, 0.5, 0.9):
        expected = np.quantile(draws, level)
        assert mixture.quantile(X, level, include_noise)[1] == pytest.approx(expected, abs=0.02)
    np.testing.assert_allclose(mixture.predict(X), mixture.predict(X, return_std=True)[0], rtol=1e-12)


def test_densities_are_sums_of_the_members_densities():
    y = np.array([-1.0, 0.3, 40.0])
    found = PredictiveMixture(MEMBERS, WEIGHTS).log_density(X, y)
    slow = [
        np.log(
            sum(
                w * norm.pdf(value, m.mean, np.hypot(m.deviation, m.noise))
                for w, m in zip(WEIGHTS, MEMBERS, strict=True)
            )
        )
        for value in y[:2]
    ]
    np.testing.assert_allclose(found[:2], slow)
    # far out the widest member counts alone, where the sum itself is zero
    assert found[2] == pytest.approx(np.log(0.5) + norm.logpdf(40, 0.5, np.hypot(1, 0.5)))


def test_weights_are_normalised_and_members_without_any_are_not_asked():
    idle = Member(100.0, 1.0)
    mixture = PredictiveMixture([MEMBERS[0], idle], np.array([3.0, 0.0]))
    assert mixture.predict(X)[0] == -1.0
    assert idle.calls == 0
    assert mixture.weights.tolist() == [1.0, 0.0]


def test_mixtures_may_be_members():
    inner = PredictiveMixture(MEMBERS[:2], np.array([0.2, 0.5]))
    outer = PredictiveMixture([inner, MEMBERS[2]], np.array([0.7, 0.3]))
    flat = PredictiveMixture(MEMBERS, WEIGHTS)
    np.testing.assert_allclose(outer.predict(X, return_std=True), flat.predict(X, return_std=True))


@pytest.mark.parametrize(
    ("members", "weights", "message"),
    [
        (MEMBERS, [1.0, 2.0], "3 members need as many weights, not 2"),
        ([], [], "0 members"),
        (MEMBERS, [1.0, -1.0, 2.0], "not negative"),
        (MEMBERS, [0.0, 0.0, 0.0], "not all zero"),
        (MEMBERS, [np.nan, 1.0, 1.0], "finite"),
    ],
)
def test_bad_weights_are_refused(members: list, weights: list, message: str):
    with pytest.raises(ValueError, match=message):
        PredictiveMixture(members, np.array(weights))


def test_bad_levels_and_targets_are_refused():
    mixture = PredictiveMixture(MEMBERS, WEIGHTS)
    with pytest.raises(ValueError, match=r"between 0 and 1, not 1\.5"):
        mixture.quantile(X, 1.5)
    with pytest.raises(ValueError, match=r"shape \(3,\), but y has \(2,\)"):
        mixture.log_density(X, [1.0, 2.0])
