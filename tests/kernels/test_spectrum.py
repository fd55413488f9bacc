"""Spectra of uneven samples against least squares, and starts from them."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import SpectralMixtureKernel

from orbitwise.kernels import spectral_mixture
from orbitwise.kernels.spectrum import (
    detrend,
    frequency_grid,
    periodogram,
    spectral_peaks,
    strongest_periods,
)

RANDOM = np.random.default_rng(4)
X = np.sort(RANDOM.uniform(0, 10, 120))
LINES = 3 * np.sin(2 * np.pi * 1.3 * X) + np.cos(2 * np.pi * 3.1 * X + 1)


def test_the_periodogram_is_a_fit_by_least_squares():
    frequencies = np.array([0.4, 1.3, 2.2])
    for frequency, share in zip(frequencies, periodogram(X, LINES, frequencies), strict=True):
        phase = 2 * np.pi * frequency * X
        design = np.stack([np.ones_like(X), np.cos(phase), np.sin(phase)], 1)
        rest = LINES - design @ np.linalg.lstsq(design, LINES, rcond=None)[0]
        assert share == pytest.approx(1 - rest.var() / LINES.var(), abs=1e-9)


def test_on_an_even_grid_it_is_the_fourier_spectrum():
    x = np.arange(64.0)
    y = RANDOM.standard_normal(64)
    fourier = np.abs(np.fft.rfft(y - y.mean())) ** 2
    frequencies = np.arange(1, 32) / 64
    expected = fourier[1:32] * 2 / 64 / ((y - y.mean()) ** 2).sum()
    np.testing.assert_allclose(periodogram(x, y, frequencies), expected, rtol=1e-9)


def test_peaks_are_found_beside_a_trend_and_in_any_order():
    shuffled = RANDOM.permutation(len(X))
    y = LINES + 50 * X + 2 * X**2
    peaks = spectral_peaks(X[shuffled], y[shuffled], 2)
    np.testing.assert_allclose(peaks.frequencies, [1.3, 3.1], atol=5e-3)
    np.testing.assert_allclose(peaks.variances, [4.5, 0.5], rtol=0.25)
    assert peaks.trend > 100 * peaks.variances.sum()
    assert peaks.rest < 0.1


def test_candidates_are_the_highest_separate_peaks():
    periods = strongest_periods(X, LINES, 5)
    assert periods[0] == pytest.approx(1 / 1.3, rel=0.02)
    assert pytest.approx(periods[np.abs(periods - 1 / 3.1).argmin()], rel=0.02) == 1 / 3.1
    assert len(strongest_periods(np.ones(4), np.ones(4), 3)) == 0


def test_many_rows_are_thinned():
    x = np.linspace(0, 30, 6_000)
    peaks = spectral_peaks(x, np.sin(2 * np.pi * 0.7 * x), 1)
    assert peaks.frequencies[0] == pytest.approx(0.7, rel=1e-3)


def test_degenerate_data_have_no_peaks():
    assert len(frequency_grid(np.ones(5))) == 0
    assert len(spectral_peaks(np.ones(5), np.arange(5.0), 2).frequencies) == 0
    assert len(spectral_peaks(np.arange(9.0), np.ones(9), 2).frequencies) == 0
    assert detrend(np.arange(4.0), np.ones(4))[1] == 0.0


@pytest.mark.parametrize("normalize_y", [True, False])
def test_the_mixture_sits_on_the_lines_with_the_variance_of_the_targets(normalize_y: bool):
    kernel = spectral_mixture(X, LINES, 3, normalize_y=normalize_y)
    means = kernel.mixture_means.detach().reshape(-1)
    assert means[1:].tolist() == pytest.approx([1.3, 3.1], abs=5e-3)
    assert float(means[0]) < 0.01
    total = 1.0 if normalize_y else LINES.var()
    assert kernel.mixture_weights.sum().item() == pytest.approx(total)
    assert kernel.raw_mixture_means.dtype == torch.float64


def test_columns_have_their_own_lines_and_seeds_move_the_start():
    inputs = np.stack([X, RANDOM.uniform(0, 5, len(X))], 1)
    y = np.sin(2 * np.pi * 1.3 * X) + np.sin(2 * np.pi * 0.9 * inputs[:, 1])
    kernel = spectral_mixture(inputs, y, 2)
    assert kernel.mixture_means[1, 0].tolist() == pytest.approx([1.3, 0.9], abs=0.03)
    with torch.no_grad():
        diagonal = kernel(torch.from_numpy(inputs)).to_dense().diagonal()
    assert diagonal.tolist() == pytest.approx([1.0] * len(X))
    one, same, other = (spectral_mixture(X, LINES, 3, seed=seed).mixture_scales for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_start_has_more_evidence_than_gpytorchs():
    """log N(y; 0, K + 0.05 I) at the start, against the best of twenty of GPyTorch's own starts."""
    x, y = torch.from_numpy(X)[:, None], torch.from_numpy(LINES / LINES.std())

    def evidence(kernel: SpectralMixtureKernel) -> float:
        with torch.no_grad():
            covariance = kernel(x).to_dense() + 0.05 * torch.eye(len(x), dtype=torch.float64)
            law = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance)
            return law.log_prob(y).item()

    theirs = []
    with torch.random.fork_rng():
        for seed in range(20):
            torch.manual_seed(seed)
            kernel = SpectralMixtureKernel(4).double()
            kernel.initialize_from_data(x, y)
            theirs.append(evidence(kernel))
    assert evidence(spectral_mixture(X, LINES, 4)) > max(theirs) + 10


@pytest.mark.parametrize(
    ("x", "y", "count", "problem"),
    [
        (X, LINES[:-1], 3, "120 rows and y has 119"),
        (X, LINES, 0, "num_mixtures must be at least 1"),
        (np.full(5, np.nan), np.ones(5), 2, "x must be finite"),
        (np.ones(3), np.array([1.0, np.inf, 0.0]), 2, "y must be finite"),
    ],
)
def test_bad_input(x: np.ndarray, y: np.ndarray, count: int, problem: str):
    with pytest.raises(ValueError, match=problem):
        spectral_mixture(x, y, count)
