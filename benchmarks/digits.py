"""Learned invariances on 8×8 digits, compared with an SVM and GPyTorch's Dirichlet classifier.

    python benchmarks/digits.py --splits 0 1 2 3 4

1,000 images for training, 797 for testing, the same splits for all. Writes results/digits.json.
"""

import json
import time
import warnings

import gpytorch
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from orbitwise import InvariantGPClassifier
from orbitwise.experiments.records import command_line, write_record

NUM_TRAIN = 1000
INVARIANCES = [None, "rotation", "affine", "affine+deformation"]


def ours(invariance, seed):
    def run(X, y, X_test):
        model = InvariantGPClassifier(invariance=invariance, image_shape=(8, 8), random_state=seed).fit(X, y)
        extra = {
            "log_evidence": model.log_evidence_,
            "log_evidence_error": model.log_evidence_error_,
            "learned": {} if model.orbit_ is None else model.orbit_.learned(),
        }
        return model.predict_proba(X_test), extra

    return run


def support_vectors(X, y, X_test):
    grid = {"C": [1, 10, 100], "gamma": [0.01, 0.03, 0.1]}
    search = GridSearchCV(SVC(), grid, cv=5).fit(X / 16, y)
    model = CalibratedClassifierCV(search.best_estimator_, ensemble=False, cv=5).fit(X / 16, y)
    return model.predict_proba(X_test / 16), search.best_params_


def gpytorch_dirichlet(X, y, X_test):
    torch.manual_seed(0)
    x, labels = torch.tensor(X / 16).float(), torch.tensor(y)
    likelihood = gpytorch.likelihoods.DirichletClassificationLikelihood(labels, learn_additional_noise=False)

    class Model(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(x, likelihood.transformed_targets, likelihood)
            shape = torch.Size((10,))
            self.mean = gpytorch.means.ConstantMean(batch_shape=shape)
            rbf = gpytorch.kernels.RBFKernel(batch_shape=shape)
            self.kernel = gpytorch.kernels.ScaleKernel(rbf, batch_shape=shape)

        def forward(self, inputs):
            return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))

    model = Model()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    with gpytorch.settings.fast_computations(False, False, False):
        model.train()
        for _ in range(50):
            optimizer.zero_grad()
            loss = -objective(model(x), likelihood.transformed_targets).sum()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            samples = model(torch.tensor(X_test / 16).float()).sample(torch.Size((256,))).exp()
    return (samples / samples.sum(-2, keepdim=True)).mean(0).T.numpy(), {}


def main():
    parser = command_line(__doc__, "results/digits.json")
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    X, y = load_digits(return_X_y=True)
    records = []
    for split in arguments.splits:
        order = np.random.default_rng(split).permutation(len(X))
        train, test = order[:NUM_TRAIN], order[NUM_TRAIN:]
        methods = {f"orbitwise {name or 'none'}": ours(name, split) for name in INVARIANCES}
        methods |= {"support vectors": support_vectors, "gpytorch dirichlet": gpytorch_dirichlet}
        for name, method in methods.items():
            start = time.perf_counter()
            probabilities, extra = method(X[train], y[train], X[test])
            record = {
                "split": split,
                "method": name,
                "seconds": time.perf_counter() - start,
                "error": float((probabilities.argmax(1) != y[test]).mean()),
                "log_loss": float(log_loss(y[test], probabilities)),
                **extra,
            }
            records.append(record)
            print(json.dumps(record), flush=True)
            write_record({"threads": torch.get_num_threads(), "records": records}, arguments.out)
    table = Table(
        title=f"8×8 digits, {NUM_TRAIN} for training, {len(arguments.splits)} splits (mean ± standard error)"
    )
    for heading in ("method", "test error %", "log loss", "log evidence", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name in methods:
        rows = [record for record in records if record["method"] == name]
        cells = []
        for key, scale in (("error", 100), ("log_loss", 1), ("log_evidence", 1), ("seconds", 1)):
            values = scale * np.array([row.get(key, np.nan) for row in rows])
            error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
            digits = {"error": 2, "log_loss": 4}.get(key, 0)
            cells.append(
                "-" if np.isnan(values).any() else f"{values.mean():,.{digits}f} ± {error:.{digits}f}"
            )
        table.add_row(name, *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
