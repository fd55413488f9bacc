import math

import numpy as np
import pytest
import torch

from orbitwise.experiments.recovery import (
    NOISE,
    SETTINGS,
    SHAPES,
    draw_targets,
    images_of,
    made_up_signals,
    moved_images,
)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda each: each.name)
def test_a_start_learns_what_is_asked_for_and_is_not_the_truth(setting):
    learned = setting.orbit().learned()
    assert set(learned) == set(setting.truth)
    assert all(abs(learned[name][1] - truth) > 0.1 * truth for name, truth in setting.truth.items() if truth)
    true = setting.orbit(setting.truth).learned()
    assert all(true[name][1] == pytest.approx(truth) for name, truth in setting.truth.items() if truth)
    x = setting.inputs(6)
    assert x.shape[0] == 6
    assert setting.orbit().points(torch.from_numpy(x).double()).points.shape[0] == 6


def test_drawn_targets_have_the_covariance_of_an_average_over_the_orbit():
    setting = next(each for each in SETTINGS if each.name.startswith("signals"))
    x = torch.from_numpy(setting.inputs(3))
    (targets,) = draw_targets(setting, x, 200_000, [0], 64)
    shifts = torch.linspace(-setting.truth["shift"], setting.truth["shift"], 402, dtype=torch.float64)[1:-1]
    moved = setting.orbit(setting.truth).move(
        x, torch.stack([shifts / setting.truth["shift"], torch.zeros_like(shifts)], dim=-1).expand(3, -1, -1)
    )
    distances = torch.cdist(moved.flatten(0, 1), moved.flatten(0, 1)) ** 2
    pairs = torch.exp(-0.5 * distances / setting.lengthscale**2).view(3, 400, 3, 400)
    covariance = pairs.mean(dim=(1, 3))
    covariance += NOISE**2 * covariance.diagonal().mean() * torch.eye(3)
    torch.testing.assert_close(targets.cov(), covariance, atol=0.01, rtol=0.01)


def test_draws_differ_and_can_be_repeated():
    setting = SETTINGS[0]
    x = torch.from_numpy(setting.inputs(8)).double()
    first, second = draw_targets(setting, x, 2, [0, 1], 16)
    (again,) = draw_targets(setting, x, 2, [1], 16)
    torch.testing.assert_close(second, again)
    assert (first - second).abs().max() > 0.1


def test_images_are_moved_within_their_ranges_only():
    images, labels = images_of("digits", 20)
    assert images.shape == (20, 64)
    assert len(labels) == 20
    assert 0.9 < images.max() <= 1
    still = moved_images(images, SHAPES["digits"], {"angle": 0.0}, 0)
    np.testing.assert_allclose(still, images, atol=1e-12)
    turned = moved_images(images, SHAPES["digits"], {"angle": math.radians(40)}, 0)
    assert 0.01 < np.abs(turned - images).mean() < 0.3


def test_signals_are_periodic_and_of_unit_variance():
    signals = made_up_signals(2000, np.random.default_rng(1))
    assert abs(signals.var() - 1) < 0.05
    np.testing.assert_allclose(signals.mean(1), 0, atol=1e-12)
