"""Infinitely wide networks through sparse inference, with every evaluation of their kernels counted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from orbitwise import datasets
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.machines.task import median_distance
from orbitwise.kernels import WideNetworkKernel
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting

NETWORKS = {
    "RBF": None,
    "relu 1": {"depth": 1, "activation": "relu"},
    "relu 2": {"depth": 2, "activation": "relu"},
    "erf 2": {"depth": 2, "activation": "erf"},
    "residual relu 4": {"depth": 4, "activation": "relu", "residual": True},
}
RBF = "RBF"


@final
class Counted(Kernel):
    """A kernel that counts its evaluations, by pairs of rows and by single rows."""

    has_lengthscale = False
    evaluations: Tensor

    def __init__(self, base: Kernel) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("evaluations", torch.zeros((), dtype=torch.float64))

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params: object
    ) -> Tensor:
        """The values of the kernel."""
        self.evaluations += x1[..., 0].numel() * (1 if diag else x2.shape[-2])
        found = self.base(x1, x2, diag=diag)
        return found if isinstance(found, Tensor) else found.to_dense()


def kernel_of(network: str, spread: float) -> ScaleKernel:
    """The kernel of a network, or an RBF kernel that starts at the spread of the data."""
    settings = NETWORKS[network]
    if settings is None:
        base = RBFKernel()
        base.lengthscale = torch.tensor(spread)
        return ScaleKernel(base)
    return ScaleKernel(WideNetworkKernel(**settings))


def images(data: str, num_train: int, num_test: int, seed: int) -> tuple[np.ndarray, ...]:
    """Training and test images as rows from 0 to 1, with their labels."""
    loaded = datasets.load(data)
    if data == "mnist":
        order = np.random.default_rng(seed).permutation(len(loaded.x_train))[:num_train]
        x, y = loaded.x_train[order].reshape(len(order), -1) / 255.0, loaded.y_train[order]
        new, y_new = loaded.x_test[:num_test].reshape(-1, 784) / 255.0, loaded.y_test[:num_test]
        return x, y, new, y_new
    order = np.random.default_rng(seed).permutation(len(loaded.x))
    x, y = np.asarray(loaded.x).reshape(len(order), -1)[order] / 16.0, np.asarray(loaded.y)[order]
    return x[:num_train], y[:num_train], x[num_train:][:num_test], y[num_train:][:num_test]


def run(
    network: str, data: str, num_train: int, num_test: int, num_inducing: int, max_iterations: int,
    seed: int, device: str,
) -> Numbers:  # fmt: skip
    """A sparse classifier with one kernel: bound, test error, and what was evaluated."""
    x, y, new, y_new = images(data, num_train, num_test, seed)
    some = x[:: max(1, len(x) // 500)]
    counted = Counted(kernel_of(network, median_distance(torch.from_numpy(some)))).double()
    model = InvariantGPClassifier(
        counted,
        inference="collapsed",
        num_inducing=num_inducing,
        max_iterations=max_iterations,
        random_state=seed,
        device=device,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, y)
    assert isinstance(model.kernel_, Counted)
    fitted, passes = model.kernel_.evaluations.item(), max(1, len(model.history_))
    wrong = model.predict(new) != y_new
    return {
        "network": network,
        "rows": len(x),
        "inducing": num_inducing,
        "log_evidence": model.log_evidence_,
        "error": 100 * float(wrong.mean()),
        "evaluations": fitted,
        "passes": passes,
        "one_pass": (len(x) + 1) * num_inducing + num_inducing**2 / 2,
        "all_pairs": len(x) ** 2 / 2 + len(x),
    }


def cells(setting: Setting) -> Mapping[str, Cell]:
    """All kernels at several numbers of inducing points."""
    data = setting.pick("digits", "digits", "mnist")
    sizes = setting.pick((20, 40), (50, 100, 200), (1000, 4000, 10000))
    options = {
        "data": data,
        "num_train": setting.pick(150, 1200, 60000),
        "num_test": setting.pick(150, 597, 10000),
        "max_iterations": setting.pick(5, 20, 30),
    }
    networks = setting.pick(list(NETWORKS)[:3], list(NETWORKS), list(NETWORKS))
    return {
        f"{network}, M = {size}, seed {seed}": Cell(
            run,
            {**options, "network": network, "num_inducing": size, "seed": seed},
            setting.pick(1.0, 8.0, 300.0),
            (data,),
        )
        for seed in setting.seeds
        for network in networks
        for size in sizes
    }


def series(numbers: Cells, network: str, key: str) -> dict[int, float]:
    """The mean over seeds for every M."""
    found = [each for each in numbers.values() if each["network"] == network]
    sizes = sorted({each["inducing"] for each in found})
    return {size: float(np.mean([e[key] for e in found if e["inducing"] == size])) for size in sizes}


def claims(numbers: Cells) -> list[Claim]:
    """What the talk asks: how sparse inference helps with infinitely wide networks."""
    networks = list(dict.fromkeys(each["network"] for each in numbers.values()))
    most = max(each["inducing"] for each in numbers.values())
    last = {network: series(numbers, network, "error")[most] for network in networks}
    evidence = {network: series(numbers, network, "log_evidence") for network in networks}
    wide = min((network for network in networks if network != RBF), key=lambda network: last[network])
    largest = [each for each in numbers.values() if each["inducing"] == most]
    passes = [each["evaluations"] / each["one_pass"] for each in largest]
    share = [each["one_pass"] / each["all_pairs"] for each in largest]
    order = sorted(networks, key=lambda network: -evidence[network][most])
    return [
        Claim.of(
            "Sparse inference needs only (N + 1)M + M²/2 kernel evaluations",
            "against N²/2 + N",
            f"M = {most}, N = {largest[0]['rows']:,}: {largest[0]['one_pass']:.3g} a pass, "
            f"{100 * share[0]:.0f} % of "
            f"all pairs; counted over a whole fit with learning: {np.mean(passes):.0f} passes' worth",
            max(share) < 1,
        ),
        Claim.of(
            "Wide networks go through sparse inference like any kernel",
            "a question of the talk",
            f"test error at M = {most}: "
            + ", ".join(f"{name} {value:.2f} %" for name, value in last.items()),
            last[wide] < 1.5 * last[RBF] + 1,
        ),
        Claim.of(
            "More inducing points do not lower the bound",
            "eq. 8",
            "; ".join(
                f"{network} " + " → ".join(f"{value:.0f}" for value in values.values())
                for network, values in evidence.items()
            ),
            all(max(values, key=lambda size: values[size]) == most for values in evidence.values()),
            "kernel and noise ended in another optimum",
        ),
        Claim.of(
            "The evidence says which kernel generalises",
            "a hint of Burt et al. (2020)",
            f"by the bound at M = {most}: {' > '.join(order)}; least test error "
            f"{min(last.values()):.2f} % by "
            f"{min(last, key=lambda name: last[name])}, of the first {last[order[0]]:.2f} %",
            last[order[0]] <= min(last.values()) + 0.5,
            "their order by bounds at this M is not that of test errors",
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Test error and bound against M."""
    figure.set_size_inches(9, 3.6)
    networks = list(dict.fromkeys(each["network"] for each in numbers.values()))
    axes = figure.subplots(1, 2)
    for axis, key in zip(axes, ("error", "log_evidence"), strict=True):
        for network in networks:
            values = series(numbers, network, key)
            axis.plot(list(values), list(values.values()), "o-", label=network)
        axis.set(xlabel="inducing points M", xscale="log")
        axis.set_xticks(list(series(numbers, networks[0], key)))
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.minorticks_off()
        axis.set_ylabel({"error": "test error, %", "log_evidence": "lower bound, nats"}[key])
    axes[0].legend(fontsize=8)


RESULT = Result(
    name="talk-wide",
    title="Infinitely wide networks and an RBF kernel through sparse inference, kernel evaluations counted",
    source="Talk, outline and conclusion; Solutions: speed up linear algebra",
    printed="Evaluations: (N + 1)M + M²/2 against N²/2 + N; the networks are a question.",
    cells=cells,
    claims=claims,
    draw=draw,
)
