"""Features deleted at test time, for machines that keep the effect of a deletion small and for others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from orbitwise import datasets
from orbitwise.estimators.svc import InvariantSVC
from orbitwise.reproduce.result import Cell, Cells, Claim, Numbers, Result, Setting

STRENGTHS = (0.0, 0.1, 1.0, 10.0)
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
"""Of the features of a test row that are set to their mean."""
REPEATS = 5


def run(data: str, num_labels: int, seed: int, device: str) -> Numbers:
    """Test errors for every strength and every share of deleted features, which are drawn for each row."""
    loaded, rng = datasets.load(data), np.random.default_rng(seed)
    x, y = np.asarray(loaded.x, dtype=np.float64), np.unique(loaded.y, return_inverse=True)[1]
    x = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1.0)
    order = rng.permutation(len(x))[: num_labels + 300]
    train, test = order[:num_labels], order[num_labels:]
    models = {
        strength: InvariantSVC(invariance="deletion", strength=strength, C=100.0).fit(x[train], y[train])
        for strength in STRENGTHS
    }
    # deleted features have the value of the mean of the training rows, as in the functional
    mean, ranks = x[train].mean(0), [rng.random((len(test), x.shape[1])).argsort(1) for _ in range(REPEATS)]
    found = {}
    for strength, model in models.items():
        errors = []
        for share in SHARES:
            count = round(share * x.shape[1])
            wrong = [
                (model.predict(np.where(rank < count, mean, x[test])) != y[test]).mean() for rank in ranks
            ]
            errors.append(100 * float(np.mean(wrong)))
        found[f"{strength:g}"] = errors
    return {"data": data, "features": x.shape[1], "errors": found}


def cells(setting: Setting) -> Mapping[str, Cell]:
    """One cell for every set and draw."""
    here = {each.name for each in datasets.available() if each.where == "ORBITWISE_DATA"}
    real = [name for name in ("uci_ionosphere", "uci_sonar", "uci_heart") if name in here]
    names = setting.pick(["wine"], ["breast_cancer", *real], ["breast_cancer", *real])
    num_labels = setting.pick(40, 100, 100)
    return {
        f"{name}, seed {seed}": Cell(
            run, {"data": name, "num_labels": num_labels, "seed": seed}, setting.pick(1.0, 5.0, 10.0), (name,)
        )
        for seed in setting.seeds
        for name in names
    }


def curves(numbers: Cells, name: str) -> dict[str, np.ndarray]:
    """Errors by strength: draws by shares."""
    found = [each["errors"] for each in numbers.values() if each["data"] == name]
    return {strength: np.array([each[strength] for each in found]) for strength in found[0]}


def names_of(numbers: Cells) -> list[str]:
    """The sets."""
    return list(dict.fromkeys(each["data"] for each in numbers.values()))


def claims(numbers: Cells) -> list[Claim]:
    """What the functional is for (RKHS, introduction, after Globerson and Roweis)."""
    parts, gains, costs = [], [], []
    most = f"{STRENGTHS[-1]:g}"
    for name in names_of(numbers):
        found = curves(numbers, name)
        plain, robust = found["0"].mean(0), found[most].mean(0)
        gains.append(plain[-1] - robust[-1])
        costs.append(robust[0] - plain[0])
        parts.append(
            f"{name} {plain[-1]:.1f} → {robust[-1]:.1f} % with half of the features, "
            f"{plain[0]:.1f} → {robust[0]:.1f} % with all"
        )
    return [
        Claim.of(
            "A penalty of what deletions change makes a machine robust to deleted features",
            "named as an invariance; not tried",
            f"without and with it (ν = {most}): {'; '.join(parts)}",
            float(np.mean(gains)) > 0,
            "the machines without it already spread their weight over many features",
        ),
        Claim.of(
            "It costs little where no features are missing",
            "not tried",
            f"{np.mean(costs):+.1f} points in the mean with all features",
            float(np.mean(costs)) < 2,
        ),
    ]


def draw(numbers: Cells, figure: Figure) -> None:
    """Test error against the share of deleted features."""
    names = names_of(numbers)
    figure.set_size_inches(3.6 * max(2, len(names)), 3.4)
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    for axis, name in zip(axes, names, strict=True):
        for strength, errors in curves(numbers, name).items():
            axis.plot([100 * share for share in SHARES], errors.mean(0), "o-", label=f"ν = {strength}")
        axis.set(xlabel="features deleted at test time, %", title=name)
    axes[0].set_ylabel("test error, %")
    axes[0].legend(fontsize=8)


RESULT = Result(
    name="rkhs-robustness",
    title="Test error as features are deleted, with and without the deletion functional",
    source="RKHS, section 1 (feature deletion)",
    printed="Feature deletion is named as an invariance; there is no experiment.",
    cells=cells,
    claims=claims,
    draw=draw,
    seeds=(1, 3, 10),
)
