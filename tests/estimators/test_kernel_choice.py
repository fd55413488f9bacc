"""The kernel of a classifier that was given none: units of columns, lengthscales, shape, and what it says."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.datasets import load_digits

from orbitwise import InvariantGPClassifier, load, save
from orbitwise.kernels import ScaledColumnsKernel


def table(num_rows: int, num_columns: int, num_relevant: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(num_rows, num_columns))
    return x, (np.prod(x[:, :num_relevant], axis=1) > 0).astype(int)


def test_columns_of_any_scale_are_told_apart():
    random = np.random.default_rng(0)
    x = random.normal(size=(240, 24))
    labels = (x[:, :3].sum(axis=1) > 0).astype(int)
    units = 10.0 ** random.uniform(-3, 4, size=24)
    model = InvariantGPClassifier().fit(units * x[:160], labels[:160])
    assert isinstance(model.kernel_.base_kernel, ScaledColumnsKernel)
    assert "in units of their spread" in model.kernel_choice_
    assert model.score(units * x[160:], labels[160:]) > 0.75


def test_relevant_columns_earn_lengthscales_of_their_own():
    x, labels = table(300, 8, 2)
    model = InvariantGPClassifier().fit(x[:200], labels[:200])
    lengthscales = model.kernel_.base_kernel.lengthscale.detach()[0]
    assert "one lengthscale per column" in model.kernel_choice_
    assert float(lengthscales[:2].max()) < float(lengthscales[2:].min()) / 2
    assert model.score(x[200:], labels[200:]) > 0.85


def test_images_keep_one_unit_for_all_pixels():
    images, labels = load_digits(return_X_y=True)
    model = InvariantGPClassifier().fit(images[:100].reshape(-1, 8, 8), labels[:100])
    assert "column" not in model.kernel_choice_
    flat = InvariantGPClassifier().fit(images[:100], labels[:100])
    assert "columns in units of their spread" in flat.kernel_choice_


def test_labels_are_predicted_by_what_left_out_labels_say_and_evidence_stays_that_of_its_maximum():
    x, labels = table(120, 3, 1)
    labels = np.where(np.random.default_rng(1).random(120) < 0.1, 1 - labels, labels)
    by_labels = InvariantGPClassifier().fit(x, labels)
    by_evidence = InvariantGPClassifier(noise="evidence").fit(x, labels)
    assert by_labels.kernel_choice_ == by_evidence.kernel_choice_
    assert by_labels.log_evidence_ == pytest.approx(by_evidence.log_evidence_, abs=1e-6)
    assert by_labels.leave_one_out_log_loss_ < by_evidence.leave_one_out_log_loss_ + 1e-9


def test_what_was_chosen_is_said_and_kept(tmp_path, capsys):
    x, labels = table(60, 3, 1)
    model = InvariantGPClassifier(verbose=True).fit(x, labels)
    assert f"kernel: {model.kernel_choice_}" in capsys.readouterr().out
    save(model, tmp_path / "model.orbitwise")
    back = load(tmp_path / "model.orbitwise")
    assert back.kernel_choice_ == model.kernel_choice_
    np.testing.assert_allclose(back.predict_proba(x), model.predict_proba(x), rtol=1e-9)


def test_a_given_kernel_an_invariance_and_few_rows_leave_no_choice():
    x, labels = table(60, 3, 1)
    assert not hasattr(InvariantGPClassifier(kernel=RBFKernel()).fit(x, labels), "kernel_choice_")
    assert not hasattr(InvariantGPClassifier(invariance="permutation").fit(x, labels), "kernel_choice_")
    assert not hasattr(InvariantGPClassifier().fit(x[:12], np.arange(12) % 2), "kernel_choice_")


def test_rows_beyond_those_of_the_choice_are_learned_from(monkeypatch):
    x, labels = table(150, 3, 1)
    monkeypatch.setattr("orbitwise.estimators.kernel_choice.CHOICE_ROWS", 60)
    model = InvariantGPClassifier().fit(x, labels)
    assert "60 rows" in model.kernel_choice_
    again = InvariantGPClassifier(warm_start=True).fit(x, labels).fit(x, labels)
    assert isinstance(again.leave_one_out_log_loss_, float)
    assert model.score(x, labels) > 0.9


def test_a_choice_needs_no_luck():
    x, labels = table(80, 4, 1)
    first, second = (InvariantGPClassifier(random_state=seed).fit(x, labels) for seed in (0, 1))
    assert torch.equal(first.kernel_.base_kernel.lengthscale, second.kernel_.base_kernel.lengthscale)


def test_of_two_lengthscales_the_long_one_is_begun_with():
    """Labels that a plane divides: nothing is gained by a function that bends."""
    random = np.random.default_rng(1)
    x = random.normal(size=(120, 10))
    y = (x[:, :4].sum(1) + random.normal(size=120) > 0).astype(int)
    lengthscale = InvariantGPClassifier().fit(x, y).kernel_.base_kernel.lengthscale
    assert float(lengthscale.detach()) > 2 * 10**0.5
