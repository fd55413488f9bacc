"""Sparse regression of protein structures with 500 inducing points, compared with GPflow and GPyTorch.

    python benchmarks/sparse_regression.py

Needs ORBITWISE_DATA, and GPflow from the extra `bench-gpflow` in a separate environment. All start from
the same scaled RBF kernel with a lengthscale for each column and take the same number of L-BFGS iterations;
the peers start from k-means, as their guides say. All are judged by Titsias' bound at their solutions,
computed by one function, and by test error. Writes results/sparse_regression.json.
"""

import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpytorch
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.cluster import KMeans

from orbitwise import SparseGPRegressor, datasets
from orbitwise.experiments.records import command_line, versions_and_machine, write_record
from orbitwise.functionals import Evaluation
from orbitwise.inference.model import Observations
from orbitwise.inference.optimise.training import maximize
from orbitwise.inference.sparse.bounds import best_q, collapsed_bound, gather_totals
from orbitwise.inference.sparse.inducing import inducing_factor
from orbitwise.inference.sparse.posterior import SparsePosterior
from orbitwise.kernels.bases import default_kernel
from orbitwise.process import Process

NOISE = 0.05


def load(split):
    data = datasets.load("uci_reg_protein")
    x, y = np.asarray(data.x, dtype=float), np.asarray(data.y, dtype=float)
    test = np.zeros(len(x), dtype=bool)
    test[data.test_idx[split]] = True
    x = (x - x[~test].mean(0)) / x[~test].std(0)
    scale = y[~test].std()
    y = (y - y[~test].mean()) / scale
    return x[~test], y[~test], x[test], y[test], scale


def clusters(x, count):
    sample = x[np.random.default_rng(0).permutation(len(x))[:20_000]]
    return KMeans(count, n_init=1, max_iter=20, random_state=0).fit(sample).cluster_centers_


def orbitwise(x, y, count, iterations, bound):
    model = SparseGPRegressor(
        num_inducing=count, bound=bound, max_iterations=iterations, normalize_y=False, random_state=0
    ).fit(x, y)
    kernel = model.kernel_
    points = model.posterior_.inducing.numpy()
    lengthscale = kernel.base_kernel.lengthscale.detach().numpy().ravel()
    return lengthscale, kernel.outputscale.item(), model.noise_, points


def gpflow_sgpr(x, y, count, iterations):
    import gpflow

    start = default_kernel(torch.from_numpy(x), True).base_kernel.lengthscale.detach().numpy().ravel()
    kernel = gpflow.kernels.SquaredExponential(lengthscales=start)
    model = gpflow.models.SGPR((x, y[:, None]), kernel, clusters(x, count), noise_variance=NOISE)
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options={"maxiter": iterations}
    )
    parts = (kernel.lengthscales, kernel.variance, model.likelihood.variance, model.inducing_variable.Z)
    lengthscale, scale, noise, points = (part.numpy() for part in parts)
    return lengthscale, float(scale), float(noise), points


def gpytorch_inducing(x, y, count, iterations):
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    class Model(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            base = default_kernel(inputs, True)
            points = torch.from_numpy(clusters(x, count))
            self.kernel = gpytorch.kernels.InducingPointKernel(base, points, likelihood)

        def forward(self, points):
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    model = Model(likelihood).double()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    maximize(lambda: objective(model(inputs), targets) * len(x), list(model.parameters()), iterations)
    base = model.kernel.base_kernel
    lengthscale = base.base_kernel.lengthscale.detach().numpy().ravel()
    points = model.kernel.inducing_points.detach().numpy()
    return lengthscale, base.outputscale.item(), likelihood.noise.item(), points


@torch.no_grad()
def judge(solution, x, y, x_test, y_test, scale):
    """Titsias' bound and the test error, from hyperparameters and points alone."""
    lengthscale, outputscale, noise, points = solution
    kernel = default_kernel(torch.from_numpy(x), True)
    kernel.base_kernel.lengthscale, kernel.outputscale = torch.from_numpy(lengthscale), outputscale
    process, noise = Process(None, kernel), torch.tensor(noise, dtype=torch.float64)
    points = torch.from_numpy(np.asarray(points))
    lower = inducing_factor(process, points)
    rows = Observations(Evaluation(), torch.from_numpy(x), torch.from_numpy(y)[:, None])
    totals = gather_totals(process, rows, points, lower, noise)
    posterior = SparsePosterior(process, points, best_q(totals, noise), lower)
    mean = posterior.moments(Evaluation(), torch.from_numpy(x_test)).mean[:, 0].numpy()
    return {
        "titsias": float(collapsed_bound(totals, noise, tight=False)),
        "tight": float(collapsed_bound(totals, noise)),
        "rmse": float(scale * np.sqrt(np.mean((mean - y_test) ** 2))),
        "noise": float(noise),
    }


def main():
    parser = command_line(__doc__, "results/sparse_regression.json")
    parser.add_argument("--iterations", type=int, default=80)
    parser.add_argument("--inducing", type=int, default=500)
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["titsias", "gpflow", "gpytorch", "tight"])
    arguments = parser.parse_args()
    x, y, x_test, y_test, scale = load(arguments.split)
    methods = {
        "titsias": ("orbitwise, bound='titsias'", lambda *given: orbitwise(*given, bound="titsias")),
        "tight": ("orbitwise, bound='tight'", lambda *given: orbitwise(*given, bound="tight")),
        "gpflow": ("gpflow SGPR", gpflow_sgpr),
        "gpytorch": ("gpytorch InducingPointKernel", gpytorch_inducing),
    }
    records = []
    for name in arguments.methods:
        label, method = methods[name]
        start = time.perf_counter()
        solution = method(x, y, arguments.inducing, arguments.iterations)
        seconds = time.perf_counter() - start
        record = {"method": label, "seconds": seconds, **judge(solution, x, y, x_test, y_test, scale)}
        records.append(record)
        print(json.dumps(record), flush=True)
    others = ("gpflow", "tensorflow") if "gpflow" in arguments.methods else ()
    setup = {
        "rows": len(x),
        "inducing": arguments.inducing,
        "iterations": arguments.iterations,
        "split": arguments.split,
        "threads": torch.get_num_threads(),
        "versions": versions_and_machine(*others)["versions"],
    }
    write_record({**setup, "records": records}, arguments.out)
    table = Table(
        title=f"protein, {len(x):,} rows, M = {arguments.inducing}, {arguments.iterations} iterations"
    )
    for heading in ("method", "Titsias' bound", "tight bound", "test RMSE", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for record in records:
        bounds = f"{record['titsias']:,.0f}", f"{record['tight']:,.0f}"
        table.add_row(record["method"], *bounds, f"{record['rmse']:.3f}", f"{record['seconds']:.0f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
