"""Where estimators compute: the rule, devices that are not there, and the same results on a GPU."""

import numpy as np
import pytest
import torch

from orbitwise import InvariantGPClassifier, InvariantGPRegressor, SparseGPRegressor, load, save
from orbitwise.estimators import learned_ranges
from orbitwise.estimators.convergence import fit_quietly
from orbitwise.estimators.estimator import USUAL_NODES, WORTH_A_GPU, chosen_device, work_of
from orbitwise.estimators.invariances import functional_of
from orbitwise.functionals import Evaluation

ESTIMATORS = {
    "exact": InvariantGPRegressor(random_state=0),
    "on nodes": InvariantGPClassifier(invariance="rotation", image_shape=(2, 2), num_nodes=8, random_state=0),
    "collapsed": InvariantGPClassifier(inference="collapsed", num_inducing=20, random_state=0),
    "variational": InvariantGPRegressor(
        inference="variational", num_inducing=20, num_steps=40, random_state=0
    ),
    "sparse": SparseGPRegressor(random_state=0),
}


@pytest.fixture(scope="module")
def waves() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 4))
    return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * random.normal(size=80)


def test_a_gpu_is_taken_where_there_is_one_and_the_work_is_worth_it():
    assert chosen_device("auto", WORTH_A_GPU, num_gpus=1) == "cuda"
    assert chosen_device("auto", 0.99 * WORTH_A_GPU, num_gpus=1) == "cpu"
    assert chosen_device("auto", 1e15, num_gpus=0) == "cpu"


def test_a_name_means_that_device_whatever_the_work():
    assert chosen_device("cpu", 1e15, num_gpus=2) == "cpu"
    assert chosen_device("cuda", 1.0, num_gpus=1) == "cuda"
    assert chosen_device("cuda:1", 1.0, num_gpus=2) == "cuda:1"
    assert chosen_device(torch.device("cuda", 1), 1.0, num_gpus=2) == "cuda:1"


@pytest.mark.parametrize(
    ("device", "num_gpus", "message"),
    [
        ("cuda", 0, "no CUDA GPU here: take device='auto'"),
        ("cuda:2", 2, "only 2 GPUs"),
        ("gpu", 1, "must be 'auto', 'cpu', 'cuda' or 'cuda:1', not 'gpu'"),
        ("mps", 0, "no double precision"),
        (0, 1, "not 0"),
    ],
)
def test_a_device_that_is_not_there_is_refused(device, num_gpus, message):
    with pytest.raises(ValueError, match=message):
        chosen_device(device, 1.0, num_gpus)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimators_refuse_it_before_they_learn(name, waves):
    model = ESTIMATORS[name].__sklearn_clone__().set_params(device="cuda")
    with pytest.raises(ValueError, match="device='cuda', but torch finds no CUDA GPU here"):
        model.fit(waves[0], waves[1] > 0 if name in ("on nodes", "collapsed") else waves[1])


def test_work_counts_rows_nodes_inducing_points_and_columns():
    x = torch.zeros(100, 64, dtype=torch.float64)
    assert work_of(Evaluation(), x, None, 50) == 100 * 50 * 64
    assert work_of(Evaluation(), x, None, None) == 100 * 100 * 64
    drawn = functional_of("rotation", 64, (8, 8)).double()
    assert work_of(drawn, x, 4, 50) == 100 * 4 * 50 * 64
    assert work_of(drawn, x, None, 50) == 100 * USUAL_NODES * 50 * 64
    assert work_of(drawn, x, 4, None) == (100 * 4) ** 2 * 64
    # all elements of a group
    assert work_of(functional_of("negation", 64, None), x, 4, 50) == 100 * 2 * 50 * 64


def test_what_was_chosen_is_told_and_stored(waves, tmp_path):
    model = InvariantGPRegressor(max_iterations=0).fit(*waves)
    assert (model.device, model.device_) == ("auto", "cpu")
    save(model, tmp_path / "model.orbitwise")
    back = load(tmp_path / "model.orbitwise")
    assert (back.device, back.device_) == ("auto", "cpu")
    # predictions are where it was fitted, whatever the next fit is asked for
    means = model.predict(waves[0])
    np.testing.assert_array_equal(model.set_params(device="cuda").predict(waves[0]), means)


def test_products_of_few_digits_are_not_taken_for_distances(waves, monkeypatch):
    x, y = waves
    seen = []
    search = learned_ranges._searched
    monkeypatch.setattr(
        learned_ranges, "_searched", lambda kind, *rest: seen.append(rest[0]) or search(kind, *rest)
    )
    for digits, precision in (("highest", torch.float32), ("medium", torch.float64)):
        torch.set_float32_matmul_precision(digits)
        try:
            model = InvariantGPRegressor(
                invariance="rotation", image_shape=(2, 2), num_nodes=4, max_iterations=2
            )
            fit_quietly(model, x, y)
        finally:
            torch.set_float32_matmul_precision("highest")
        assert seen[-1] == precision


@pytest.mark.gpu
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_gpu_gives_the_same_answer_and_its_file_loads_on_a_cpu(name, waves, tmp_path):
    x, y = waves
    targets = (y > 0).astype(int) if name in ("on nodes", "collapsed") else y
    here, there = (ESTIMATORS[name].__sklearn_clone__().set_params(device=each) for each in ("cpu", "cuda"))
    here.fit(x, targets)
    there.fit(x, targets)
    assert there.device_ == "cuda"
    if name != "variational":  # whose draws are those of the device
        assert there.log_evidence_ == pytest.approx(here.log_evidence_, abs=0.5)
    save(there, tmp_path / "model.orbitwise")
    back = load(tmp_path / "model.orbitwise", device="cpu")
    assert back.device_ == "cpu"
    np.testing.assert_allclose(back.predict(x), there.predict(x), rtol=1e-6, atol=1e-6)
