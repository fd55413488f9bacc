"""The model behind the regressors: standardised targets, rows of all observations, and the objective that is learned."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal, NamedTuple, final

import numpy as np
import torch
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from orbitwise.estimators.replicates import Replicates, merge
from orbitwise.functionals.atoms import Atoms
from orbitwise.functionals.functional import Functional
from orbitwise.functionals.gradients import Gradients
from orbitwise.inference import exact
from orbitwise.inference.defaults import default_kernel
from orbitwise.inference.training import log_prior
from orbitwise.process.process import Process, Rows

Observation = tuple[Functional, ArrayLike, ArrayLike, float | None]
NOISE_FLOOR = 1e-8
NOISE_START = 0.05


class EvidenceTerms(NamedTuple):
    """The evidence of the targets as they were given."""

    value: float
    fit: float
    complexity: float
    jitter: float


class Extra(NamedTuple):
    """A validated observation of another functional, in standardised units."""

    functional: Functional
    x: Tensor
    targets: Tensor
    noise: Tensor | None


@final
class RegressionModel(nn.Module):
    """y = scale·(L g) + shift + noise for merged rows, and observations of other functionals of the same f."""

    def __init__(
        self,
        replicates: Replicates,
        functional: Functional,
        process: Process,
        noise: float | None,
        scale: Tensor,
        shift: Tensor,
        extras: Sequence[Extra],
    ) -> None:
        super().__init__()
        self.functional = functional
        self.process = process
        self.scale, self.shift = scale, shift
        self.replicates = replicates
        self.extras = list(extras)
        self.x = torch.from_numpy(replicates.x)
        self.weight = torch.from_numpy(replicates.weight)
        targets = (torch.from_numpy(replicates.y) - shift) / scale
        self.targets = torch.cat([targets, *(extra.targets for extra in extras)])
        learned = [NOISE_START if noise is None else None, *(None if e.noise is not None else NOISE_START for e in extras)]
        self.fixed_noise = None if noise is None else noise / scale.square()
        self.raw_noise = nn.ParameterList(
            nn.Parameter(torch.tensor(np.log(start or 1.0), dtype=torch.float64), requires_grad=start is not None)
            for start in learned
        )

    def noise(self) -> Tensor:
        """The noise variance of one standardised target, as a vector of one entry (or one for each output, if fixed)."""
        if self.fixed_noise is not None:
            return self.fixed_noise
        return (self.raw_noise[0].exp() + NOISE_FLOOR).reshape(1)

    def rows(self) -> Rows:
        """The atoms of all observations, lowered afresh (learnable orbits move them)."""
        return [
            self.functional.atoms(self.x),
            *((extra.functional @ self.functional).atoms(extra.x) for extra in self.extras),
        ]

    def row_noise(self) -> Tensor:
        """The noise variance of every row."""
        parts = [self.noise()[0] / self.weight]
        for raw, extra in zip(list(self.raw_noise)[1:], self.extras, strict=True):
            noise = raw.exp() + NOISE_FLOOR if extra.noise is None else extra.noise
            parts.append(noise.expand(len(extra.targets)))
        return torch.cat(parts)

    def objective(self) -> Tensor:
        """Log evidence of the standardised targets plus log hyperpriors."""
        terms = exact.evidence(self.process, self.rows(), self.targets, self.row_noise())
        return terms.value + self._merged() + log_prior(self.process)

    def evidence(self) -> EvidenceTerms:
        """The evidence of the targets as given: standardising is undone by its Jacobian."""
        terms = exact.evidence(self.process, self.rows(), self.targets, self.row_noise())
        count = float(self.weight.sum()) + sum(len(extra.targets) for extra in self.extras)
        jacobian = -count * float(self.scale.log().sum())
        value = float(terms.value + self._merged()) + jacobian
        return EvidenceTerms(value, float(terms.fit), float(terms.complexity), terms.jitter)

    def posterior(self) -> exact.ExactPosterior:
        """The posterior of g at the present hyperparameters."""
        return exact.condition(self.process, self.rows(), self.targets, self.row_noise())

    def shift_of(self, functional: Functional, x: Tensor) -> Tensor:
        """What the functional makes of the constant function 1, for every row."""
        return constant_part(functional, x)

    def _merged(self) -> Tensor:
        scatter = self.replicates.scatter / self.scale.square().numpy()
        return self.replicates._replace(scatter=scatter).log_factor(self.noise()[0])


def prepare(
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    weight: NDArray[np.float64],
    functional: Functional,
    kernel: Kernel | None,
    noise: float | None,
    mean: Literal["zero", "constant", "linear"],
    normalize_y: bool,
    one_sided: Literal["auto"] | bool,
    observations: Sequence[Observation],
) -> RegressionModel:
    """A model ready to be trained, from validated data and the arguments of an estimator."""
    if noise is not None and not (np.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise must be a finite variance of at least 0, or None to learn it, not {noise!r}.")
    replicates = merge(x, y, weight)
    functional = functional.double()
    points = torch.from_numpy(replicates.x)
    with torch.no_grad():
        atoms = functional.atoms(points)
    total = constant_part(functional, points)
    keeps_constants = bool(total[0].abs() > 1e-12) and torch.allclose(total, total[0].expand_as(total))
    scale, shift = _standardisation(replicates, normalize_y, keeps_constants)
    if noise is not None and len(scale.unique()) > 1:
        raise ValueError("A fixed noise needs targets of one scale: pass normalize_y=False, or fit outputs one by one.")
    if kernel is None:
        separate = functional.is_identity
        base = default_kernel(atoms.points[:, 0], separate)
    else:
        base = copy.deepcopy(kernel).double()
    process = Process(_mean(mean, atoms.points.shape[-1]), base, one_sided).double()
    extras = [_extra(observation, scale, shift) for observation in observations]
    return RegressionModel(replicates, functional, process, noise, scale, shift, extras)


def constant_part(functional: Functional, x: Tensor) -> Tensor:
    """Σ of the weights of value atoms: the functional of the constant function 1."""
    block = functional.atoms(x)
    if isinstance(block, Gradients):
        return x.new_zeros(block.num_rows)
    assert isinstance(block, Atoms)
    return (block.weights * (block.order == 0)).sum(-1).detach()


def _standardisation(replicates: Replicates, normalize_y: bool, centre: bool) -> tuple[Tensor, Tensor]:
    outputs = replicates.y.shape[1]
    if not normalize_y:
        return torch.ones(outputs, dtype=torch.float64), torch.zeros(outputs, dtype=torch.float64)
    weight = replicates.weight[:, None]
    shift = (weight * replicates.y).sum(0) / weight.sum() if centre else np.zeros(outputs)
    squares = (weight * (replicates.y - shift) ** 2 + replicates.scatter).sum(0) / weight.sum()
    size = np.abs(replicates.y).max(0)
    # Targets that are constant but for rounding keep the scale 1.
    scale = np.where(squares > (1e-12 * size) ** 2, np.sqrt(squares), 1.0)
    return torch.from_numpy(scale), torch.from_numpy(np.asarray(shift))


def _mean(mean: str, width: int) -> ZeroMean | ConstantMean | LinearMean:
    if mean == "zero":
        return ZeroMean()
    if mean == "constant":
        return ConstantMean()
    if mean == "linear":
        linear = LinearMean(width)
        nn.init.zeros_(linear.weights)
        nn.init.zeros_(linear.bias)
        return linear
    raise ValueError(f"mean must be 'zero', 'constant' or 'linear', not {mean!r}.")


def _extra(observation: Observation, scale: Tensor, shift: Tensor) -> Extra:
    if len(observation) != 4 or not isinstance(observation[0], Functional):
        raise ValueError("An observation is (functional, inputs, targets, noise variance or None).")
    functional, inputs, targets, noise = observation
    x = torch.as_tensor(np.array(inputs, dtype=np.float64))
    y = torch.as_tensor(np.array(targets, dtype=np.float64))
    functional = copy.deepcopy(functional).double()
    total = constant_part(functional, x)
    y = y.reshape(len(total), -1) if y.numel() == len(total) * len(scale) else y
    if y.shape != (len(total), len(scale)):
        raise ValueError(
            f"Inputs of shape {tuple(x.shape)} make {len(total)} rows of {type(functional).__name__}, each with "
            f"{len(scale)} targets, but targets of shape {tuple(y.shape)} were given."
        )
    if not bool(x.isfinite().all() and y.isfinite().all()):
        raise ValueError("Inputs and targets of observations must be finite.")
    if noise is not None and not (np.isfinite(noise) and noise >= 0):
        raise ValueError(f"The noise variance of an observation must be finite and at least 0, or None, not {noise!r}.")
    y = (y - total[:, None] * shift) / scale
    return Extra(functional, x, y, None if noise is None else torch.tensor(noise, dtype=torch.float64) / scale[0] ** 2)
