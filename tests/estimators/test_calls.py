"""Every call of an estimator: gradients while it learns, and answers that are numbers."""

import inspect

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise import InvariantGPRegressor, InvariantSVC
from orbitwise.estimators.convergence import learning
from orbitwise.estimators.validation import answering
from orbitwise.orbits import SampledOrbit
from orbitwise.transforms import Rotation


@pytest.fixture(scope="module")
def waves() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * rng.normal(size=30)


class Told:
    """An estimator that finds what it is told to find."""

    def __init__(self, found: object) -> None:
        self.found = found

    @learning("log_evidence_", "absent_")
    def fit(self, X: object = None) -> "Told":
        self.could_learn = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        self.log_evidence_ = self.found
        return self

    @answering
    def predict(self) -> object:
        return self.found


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_are_on_while_learning_and_as_before_after_it(mode):
    with mode():
        before = torch.is_grad_enabled()
        assert Told(1.0).fit().could_learn
        assert torch.is_grad_enabled() == before
    assert inspect.signature(Told.fit).parameters.keys() == {"self", "X"}


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, np.array([0.0, np.nan])])
def test_what_was_learned_must_be_finite(wrong):
    with pytest.raises(ValueError, match=r"log_evidence_ is -?(nan|inf) after fit: .* Scale X and y"):
        Told(wrong).fit()


@pytest.mark.parametrize("wrong", [np.array([np.nan, 1.0]), (np.ones(2), np.array([1.0, np.inf]))])
def test_answers_must_be_finite(wrong):
    with pytest.raises(ValueError, match=r"The result of predict contains (nan|inf)"):
        Told(wrong).predict()


@pytest.mark.parametrize("fine", [np.ones(2), (np.ones(2), np.ones((2, 2))), np.array(["a"]), np.arange(2)])
def test_finite_answers_come_through_as_they_are(fine):
    assert Told(fine).predict() is fine


def test_a_prediction_that_overflows_is_an_error(waves):
    model = InvariantGPRegressor(max_iterations=0).fit(*waves)
    model.target_scale_ = model.target_scale_._replace(shift=torch.tensor([torch.inf]).double())
    for ask in (model.predict, model.sample_y, lambda x: model.predict(x, return_std=True)):
        with pytest.raises(ValueError, match="the computation overflowed"):
            ask(waves[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_learning_does_not_mind_where_it_is_called(mode, waves):
    x, y = waves
    usual = InvariantGPRegressor().fit(x, y)
    with mode():
        rows = torch.tensor(x)
        kernel = RBFKernel()
        model = InvariantGPRegressor().fit(rows, torch.tensor(y))
        InvariantGPRegressor(kernel).fit(rows, y)
        np.testing.assert_allclose(model.predict(rows), usual.predict(x), rtol=1e-6)
        orbit = SampledOrbit(Rotation(), -0.3, 0.3)
        turned = InvariantGPRegressor(invariance=orbit, num_nodes=4, max_iterations=100, random_state=0)
        assert all(error > 0 for error in turned.fit(rows, y).orbit_errors_.values())


def test_tensors_with_gradients_are_data(waves):
    x, y = waves
    rows, targets = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    weights = torch.ones(30, requires_grad=True)
    usual = InvariantGPRegressor(max_iterations=0).fit(x, y)
    model = InvariantGPRegressor(max_iterations=0).fit(rows, targets, weights)
    np.testing.assert_array_equal(model.predict(rows), usual.predict(x))
    labels = (y > 0).astype(int)
    machine = InvariantSVC(random_state=0).fit(rows, torch.tensor(labels), unlabeled=rows + 1)
    assert machine.predict(list(rows)).shape == (30,)
    assert rows.grad is None
