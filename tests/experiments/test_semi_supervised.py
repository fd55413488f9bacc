"""Table 1 of RKHS on made-up points: kernels against dense algebra, choices against all settings in turn."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.svm import SVC
from torch import Tensor

from orbitwise.estimators.machines.task import median_distance
from orbitwise.experiments import semi_supervised
from orbitwise.experiments.semi_supervised import (
    CLASSIFIERS,
    GRAPH_STRENGTHS,
    METHODS,
    NEIGHBOURS,
    RATES,
    STRENGTHS,
    USUAL,
    Family,
    Labels,
    Task,
    by_evidence,
    by_folds,
    families,
    rates_of,
    run_draw,
)
from orbitwise.functionals import Evaluation, Gradient
from orbitwise.inference.risk import DenseGram, Problem, Term, newton
from orbitwise.inference.risk.evidence import logistic_evidence
from orbitwise.losses import Hinge, Logistic
from orbitwise.process import Process

SMALL = (12, 18, 24)


def clouds(seeds: list[int]) -> Task:
    """Two clouds of points."""
    draw, classes = np.random.default_rng(0), np.array(["no", "yes"])[np.arange(60) % 2]
    x = draw.normal(size=(60, 3)) + 3.5 * (classes == "yes")[:, None] * [1, 0.5, 0]
    return Task.of_rows(x, classes, seeds)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(semi_supervised, "LABELS", SMALL)
    return clouds([0, 1, 2])


@pytest.fixture
def kernels(task: Task) -> dict[str, Family]:
    return families(task, "cpu")


def test_features_are_scaled_and_draws_have_the_shares_of_the_classes(task: Task):
    torch.testing.assert_close(task.x.mean(0), torch.zeros(3).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(task.x.norm(dim=0), torch.ones(3).double())
    assert task.draws.shape == (3, SMALL[-1])
    for draw in task.draws:
        assert len(draw.unique()) == SMALL[-1]
        for count in SMALL:
            assert torch.bincount(task.codes[draw[:count]]).tolist() == [count // 2, count // 2]
    assert not torch.equal(task.draws[0], task.draws[1])
    assert torch.equal(task.draws[1:], clouds([1, 2]).draws)
    assert task.columns.tolist() == sorted(set(task.draws.flatten().tolist()))


def test_a_rare_class_keeps_its_share_in_every_beginning_of_a_draw():
    codes = (torch.arange(1000) % 5 == 0).long()
    for seed in range(5):
        order = semi_supervised._draw(codes, seed)
        counts = codes[order].cumsum(0)
        wanted = torch.arange(1, 1 + len(order)) / 5
        assert ((counts - wanted).abs() <= 1).all()


def test_kernels_are_those_of_dense_algebra(task: Task, kernels: dict[str, Family]):
    width = median_distance(task.x)
    kernel = RBFKernel().double()
    kernel.lengthscale = width
    process = Process(None, kernel.requires_grad_(False))
    points, slopes = Evaluation().atoms(task.x), Gradient().atoms(task.x)
    prior, cross, gram = (
        process.covariance(points),
        process.covariance(slopes, points),
        process.covariance(slopes),
    )
    torch.testing.assert_close(kernels["SVM"].grams[0], prior[:, task.columns], rtol=0, atol=1e-5)
    family = kernels["InvSVM"]
    assert family.grams.shape == (1 + len(STRENGTHS), 60, len(task.columns))
    torch.testing.assert_close(family.grams[0], kernels["SVM"].grams[0])
    for strength, found, setting in zip(STRENGTHS, family.grams[1:], family.settings[1:], strict=True):
        assert setting["strength"] == strength
        noise = torch.eye(len(gram)).double() / (2 * width**2 * strength)
        expected = prior - cross.mT @ torch.linalg.solve(gram + noise, cross)
        torch.testing.assert_close(found, expected[:, task.columns], rtol=0, atol=2e-3)
    # the more it counts, the less of the prior is left
    left = family.grams[:, task.columns].diagonal(dim1=-2, dim2=-1).mean(-1)
    assert (left.diff() < 0).all()
    assert left[0] == pytest.approx(1)
    graphs = kernels["LapSVM"]
    assert len(graphs.grams) == len(graphs.settings) == 1 + len(GRAPH_STRENGTHS) * len(NEIGHBOURS)


def test_functions_of_the_points_are_less_flat_at_most(task: Task, kernels: dict[str, Family]):
    """Fewer functions, equal penalties: k̃ cannot be larger, and at small strengths it is nearly the same."""
    fewer = families(task, "cpu", "points")["InvSVM"].grams
    whole = kernels["InvSVM"].grams
    torch.testing.assert_close(fewer[0], whole[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(fewer[3], whole[3], rtol=0, atol=0.02)
    difference = (whole - fewer)[:, task.columns].diagonal(dim1=-2, dim2=-1)
    assert (difference > -5e-3).all()
    assert difference[-1].max() > 1e-3


def test_labels_are_the_first_of_a_draw(task: Task, kernels: dict[str, Family]):
    labels = Labels.of(task, 1, 12, 5)
    assert torch.equal(labels.rows, task.draws[1, :12])
    assert torch.equal(task.columns[labels.places], labels.rows)
    assert torch.equal(labels.targets[0] > 0, task.codes[labels.rows] == 1)
    assert labels.folds.shape == (5, 12)
    for folds in labels.folds:
        assert sorted(set(folds.tolist())) == [0, 1, 2, 3, 4]
    assert not torch.equal(labels.folds[0], labels.folds[1])
    own = labels.own(kernels["SVM"].grams)[0]
    expected = kernels["SVM"].grams[0][labels.rows][:, labels.places]
    torch.testing.assert_close(own, expected, rtol=0, atol=1e-5)
    variance = own.diagonal().mean()
    torch.testing.assert_close(rates_of(own[None])[0] * variance, torch.tensor(RATES).double())


def held_out(gram: Tensor, labels: Labels, rate: float) -> tuple[float, bool, float]:
    """The error, whether all answers are the same, and the loss, one fold after the other."""
    loss, targets, drawn = Hinge(0.1), labels.targets[0], []
    for folds in labels.folds:
        values = torch.zeros(12).double()
        for fold in range(5):
            seen, out = (torch.nonzero(each)[:, 0] for each in (folds != fold, folds == fold))
            ones = torch.ones(len(seen)).double()
            terms = [Term(loss, targets[seen], rate * ones)]
            found = newton(Problem(DenseGram(gram[seen][:, seen]), terms, ones[:, None]))
            values[out] = gram[out][:, seen] @ found.coefficients + found.beta
        drawn.append(values)
    values = torch.stack(drawn)
    error = ((values > 0).long() != labels.codes).double().mean().item()
    constant = bool(((values > 0) == (values[0, 0] > 0)).all())
    return round(error, 9), constant, loss.value(values, targets).mean().item()


def test_folds_choose_the_least_error(task: Task, kernels: dict[str, Family], monkeypatch):
    monkeypatch.setattr(semi_supervised, "RATES", RATES[2::3])
    labels = Labels.of(task, 0, 12, 2)
    # two labels that are wrong, so that settings differ in what they make of them
    wrong = torch.tensor([True, False, True] + 9 * [False])
    codes = torch.where(wrong, 1 - labels.codes, labels.codes)
    labels = labels._replace(codes=codes, targets=(2.0 * codes - 1).double()[None])
    grams = labels.own(kernels["InvSVM"].grams[[1, 5]])
    reached = {
        (i, j): held_out(grams[i], labels, rate.item())
        for i, rates in enumerate(rates_of(grams))
        for j, rate in enumerate(rates)
    }
    assert len({score[:2] for score in reached.values()}) > 1
    chosen = reached[by_folds(grams, labels, Hinge(0.1))]
    best = min(reached.values())
    # machines that are only compared are solved loosely
    assert chosen[:2] == best[:2]
    assert chosen[2] == pytest.approx(best[2], abs=1.1e-2)


def test_evidence_chooses_the_greatest_less_steps_from_what_is_usual(task: Task, kernels: dict[str, Family]):
    labels = Labels.of(task, 0, 18, 1)
    grams, ones = labels.own(kernels["InvSVM"].grams), torch.ones(18, 1).double()
    scores = {}
    for i, rates in enumerate(rates_of(grams)):
        strength = (1e-6, *STRENGTHS)[i]
        for j, rate in enumerate(rates):
            value = logistic_evidence(grams[i], labels.targets[0], ones, rate * ones[:, 0]).item()
            steps = abs(math.log10(strength / USUAL.strength)) + 2 * abs(math.log10(RATES[j] / USUAL.rate))
            scores[i, j] = value - steps
    found = by_evidence(grams, labels, Logistic())
    assert scores[found] == pytest.approx(max(scores.values()), abs=1e-4)


def test_the_error_is_that_of_a_support_vector_machine(task: Task, kernels: dict[str, Family]):
    """scikit-learn's on the same kernel, whose hinge is not rounded: nearly the same answers."""
    labels, rest = Labels.of(task, 2, 24, 1), torch.ones(60, dtype=torch.bool)
    rest[labels.rows] = False
    gram = kernels["InvSVM"].grams[2]
    rates = torch.tensor([[1.0, 10.0]], dtype=torch.float64)
    found = semi_supervised.test_errors(task, gram[None], labels, Hinge(0.01), rates)[0, 1].item()
    other = SVC(C=10.0, kernel="precomputed").fit(labels.own(gram[None])[0].numpy(), labels.codes.numpy())
    answers = other.predict(gram[rest][:, labels.places].numpy())
    assert found == pytest.approx(100 * np.mean(answers != task.codes[rest].numpy()), abs=3)
    assert found < 20


def test_a_draw_has_all_machines_and_the_errors_of_all_settings(task: Task, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(semi_supervised, "NEIGHBOURS", (3,))
    record = run_draw(clouds([1]), 1, SMALL[:2], 1, "cpu", "all")
    assert (record["points"], record["features"]) == (60, 3)
    assert set(record["labels"]) == {"12", "18"}
    for count, found in record["labels"].items():
        assert set(found["methods"]) == {*METHODS, *CLASSIFIERS}
        assert np.mean([each["error"] for each in found["methods"].values()]) < 20
        grid = np.array(found["grid"])
        assert grid.shape == (1 + len(STRENGTHS), len(RATES))
        chosen = found["methods"]["InvSVM"]
        place = (0.0, *STRENGTHS).index(chosen["strength"]), RATES.index(chosen["rate"])
        assert grid[place] == pytest.approx(chosen["error"], abs=0.01)
        # the same labels as in a task of several draws
        labels = Labels.of(task, 1, int(count), 1)
        own = Labels.of(clouds([1]), 0, int(count), 1)
        assert torch.equal(labels.rows, own.rows)


@pytest.mark.requires_data("uci_bupa")
def test_a_real_set_is_read():
    task = Task.of("uci_bupa", [0])
    assert task.x.shape == (345, 6)
    assert torch.bincount(task.codes[task.draws[0]]).tolist() == pytest.approx([38, 52], abs=2)
