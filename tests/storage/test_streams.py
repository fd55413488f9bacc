"""Certificates, sums over rows and iterative posteriors come back; those that make no sense are refused."""

from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel

from orbitwise.estimators.sparse_regressor import Stream
from orbitwise.functionals import Evaluation
from orbitwise.inference.model import Observations
from orbitwise.inference.sparse import iterative
from orbitwise.inference.sparse.bounds import gather_totals
from orbitwise.inference.sparse.certificate import Certificate, Stage
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.likelihoods import Gaussian
from orbitwise.process import Process
from orbitwise.storage import StorageError
from tests.storage.round_trip import again

X = torch.rand(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
ROWS = Observations(Evaluation(), X, X.sum(1, keepdim=True), 1 + X[:, 0])
NOISE = torch.tensor(0.1, dtype=torch.float64)
CERTIFICATE = Certificate(-3.5, float("inf"), 4, 7, 0.1, "gain", [Stage(2, -4.0, 3.0, 0.2, 5)])


def posterior(variance: str) -> iterative.IterativePosterior:
    process = Process(None, RBFKernel().double())
    return iterative.condition(process, ROWS, NOISE, X[:3], variance)


def stream() -> Stream:
    process = Process(None, RBFKernel().double())
    with torch.no_grad():
        lower = inducing_factor(process, X[:3])
        totals = gather_totals(process, ROWS, X[:3], lower, NOISE)
    return Stream(process, Evaluation(), Gaussian(0.1), X[:3], None, lower, totals, 0.5, 7.0)


def test_certificates_come_back():
    assert again(CERTIFICATE) == CERTIFICATE
    assert isinstance(again(CERTIFICATE).history[0], Stage)


def test_streams_come_back():
    one = stream()
    back = again(one)
    with torch.no_grad():
        first, second = (each.posterior().moments(Evaluation(), X) for each in (one, back))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.variance, second.variance)
    assert one.certificate(0.1) == back.certificate(0.1)


def test_iterative_posteriors_come_back():
    one = posterior("sparse")
    back = again(one)
    with torch.no_grad():
        first, second = (each.moments(Evaluation(), X) for each in (one, back))
    assert torch.equal(first.mean, second.mean)
    assert torch.equal(first.variance, second.variance)
    assert back.solution._replace(vectors=0, residual=0) == one.solution._replace(vectors=0, residual=0)
    with pytest.raises(StorageError, match="variance='sparse'"):
        again(posterior("exact"))


def test_what_makes_no_sense_is_refused():
    one = stream()
    totals = one.totals
    assert totals is not None
    shorter = posterior("sparse")
    shorter.solution = shorter.solution._replace(vectors=shorter.solution.vectors[:-1])
    for wrong in (
        replace(CERTIFICATE, stopped="?"),
        replace(one, lower=one.lower[:2, :2]),
        replace(one, totals=None),
        replace(one, totals=totals._replace(gram=totals.gram[:2, :2])),
        replace(one, totals=totals._replace(product=totals.product[:2])),
        shorter,
    ):
        with pytest.raises(StorageError, match="can be built from what it holds"):
            again(wrong)


def test_totals_that_no_rows_have_are_refused():
    whole = stream()
    assert whole.totals is not None
    wrong = [
        whole.totals._replace(square=torch.ones(2, dtype=torch.float64)),
        whole.totals._replace(gram=-whole.totals.gram),
        whole.totals._replace(trace=torch.tensor(float("nan"), dtype=torch.float64)),
    ]
    for totals in wrong:
        with pytest.raises(StorageError):
            again(replace(whole, totals=totals))
