"""The evidence as a sum of predictions, each from the data before it, with and without a symmetry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.figure import Figure

from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.inference.exact import decompose
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting
from orbitwise.reproduce.results.lim_fig2 import MODELS, NOISE, truth
from orbitwise.reproduce.tables import mean_of


@torch.no_grad()
def log_predictions(model: InvariantGPRegressor, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """log p(y_n | y_1, …, y_{n-1}) of every row in the order given, at the learned hyperparameters."""
    rows = model.functional_.atoms(torch.from_numpy(x))
    noise = torch.full((len(x),), float(model.noise_), dtype=torch.float64)
    return decompose(model.posterior_.process, rows, torch.from_numpy(y)[:, None], noise).numpy()


def run(model: str, num_train: int, num_orders: int, seed: int, device: str) -> Numbers:
    """The terms of one model on one draw of the data: first one side of the diagonal, then the other."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=(num_train, 2))
    y = truth(x) + NOISE * rng.normal(size=num_train)
    order = np.argsort(x[:, 0] > x[:, 1], kind="stable")
    x, y = x[order], y[order]
    gp = InvariantGPRegressor(invariance=MODELS[model], normalize_y=False, device="cpu").fit(x, y)
    terms = log_predictions(gp, x, y)
    orders = [rng.permutation(num_train) for _ in range(num_orders)]
    totals = [float(log_predictions(gp, x[each], y[each]).sum()) for each in orders]
    first = int((x[:, 0] <= x[:, 1]).sum())
    return {
        "log_evidence": gp.log_evidence_,
        "terms": terms.round(4).tolist(),
        "first_side": first,
        "above": float(terms[:first].sum()),
        "below_given_above": float(terms[first:].sum()),
        "apart": max(abs(total - gp.log_evidence_) for total in (float(terms.sum()), *totals)),
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """Both models on every draw."""
    size = setting.pick({"num_train": 24, "num_orders": 2}, *2 * [{"num_train": 40, "num_orders": 20}])
    return {
        f"{model}, seed {seed}": Cell(run, {"model": model, "seed": seed, **size}, 0.8)
        for seed in setting.seeds
        for model in MODELS
    }


def claims(numbers: Cells) -> list[Claim]:
    """The identity, and what it says about generalisation (LIM eq. 5)."""
    apart = max(each["apart"] for each in numbers.values())

    def gain(key: str) -> float:
        return mean_of(numbers, "invariant", key) - mean_of(numbers, "non-invariant", key)

    return [
        Claim.of(
            "log p(y) = Σ log p(y_n | y_1, …, y_{n−1}), in any order of the rows",
            "an identity",
            f"differs by at most {apart:.1e} nats",
            apart < 1e-5,
        ),
        Claim.of(
            "The marginal likelihood is how well each datum is predicted from those before it, so the model "
            "that generalises has the larger one",
            "no number",
            f"the invariance is worth {gain('above'):+.1f} nats on the points above the diagonal, "
            f"{gain('below_given_above'):+.1f} on those below it, which the former determine",
            gain("below_given_above") > max(0.0, gain("above")),
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """The terms and their sums for both models."""
    figure.set_size_inches(9, 3.6)
    left, right = figure.subplots(1, 2)
    for model, colour in zip(MODELS, ("#0072b2", "#5b6770"), strict=True):
        found = numbers[f"{model}, seed 0"]
        terms = np.array(found["terms"])
        places = np.arange(1, len(terms) + 1)
        left.plot(places, terms, ".", color=colour, label=model)
        right.plot(places, terms.cumsum(), color=colour, label=model)
    first = numbers["invariant, seed 0"]["first_side"]
    for axis in (left, right):
        axis.axvline(first + 0.5, color="grey", linestyle="--", linewidth=0.8)
        axis.set_xlabel("n: points above the diagonal, then those below")
        axis.legend(fontsize=8)
    left.set_ylabel("log p(y$_n$ | y$_1$, …, y$_{n-1}$)")
    right.set_ylabel("sum so far: the log evidence at the end")


RESULT = Result(
    name="talk-sequential",
    title="The evidence as a sum of predictions, each from the data before it",
    source="Talk, Marginal likelihood (LIM eq. 5)",
    printed="The identity, and a picture of the predictions; no numbers.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 10, 10),
)
