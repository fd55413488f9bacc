"""What estimators share: the form of inputs, the run of an engine, what they tell of a learned invariance.

Also how regressors predict, and how much f changes along learned moves (LIM-A A).
"""

from __future__ import annotations

import copy
import math
import re
import sys
import time
import warnings
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from statistics import NormalDist
from typing import Any, Literal, cast

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from orbitwise.declarations import REPORTED_ARRAY, TEXT, Field, Stored
from orbitwise.estimators.convergence import iterations_of
from orbitwise.estimators.engines import (
    EngineName,
    FitSettings,
    Tilts,
    run_engine,
)
from orbitwise.estimators.features import through_features, without_features
from orbitwise.estimators.hyperparameters import (
    Hyperparameter,
    hyperparameters_of,
    names_of_columns,
    noise_parts,
    numbered,
)
from orbitwise.estimators.invariances import Invariance, functional_of
from orbitwise.estimators.learned_ranges import (
    NORMAL,
    Start,
    adopt,
    expected_seconds,
    range_errors,
    searched_errors,
)
from orbitwise.estimators.predicting import input_parts, joined
from orbitwise.estimators.regression_model import RegressionModel, TargetScale, constant_part
from orbitwise.estimators.sources import Source
from orbitwise.estimators.training_data import Rows
from orbitwise.estimators.validation import (
    InputForm,
    Order,
    answering,
    check_inputs,
    input_shape,
)
from orbitwise.functionals.averages import drawn_form, features_of, freeze_at, learnable_orbits, orbit_in
from orbitwise.functionals.features import Features
from orbitwise.functionals.functional import Block, Evaluation, Functional
from orbitwise.functionals.points import Difference
from orbitwise.inference.calibration import NoiseOfLabels
from orbitwise.inference.fit_result import CLIMBED, EVIDENCE, LEARNED, SEARCHED, FitResult
from orbitwise.inference.model import LatentModel, Observations, Posterior
from orbitwise.inference.optimise.checkpoints import Progress
from orbitwise.inference.optimise.cost import users_level
from orbitwise.inference.optimise.watching import Callback, Reporter
from orbitwise.inference.processes import ALONE, Processes
from orbitwise.inference.stored_rows import Inputs
from orbitwise.likelihoods.gaussian import Gaussian
from orbitwise.likelihoods.likelihood import Likelihood
from orbitwise.orbits.finite import FiniteOrbit
from orbitwise.orbits.orbit import DrawnOrbit
from orbitwise.process.process import Moments, Process
from orbitwise.transforms.images import check_image_shape

ROWS_AT_ONCE = 1024
WORTH_A_GPU = 1e9
"""Rows × nodes × inducing points × columns of an evaluation from which a GPU gains.

They take a tenth of a second or so of one core, and a GPU some milliseconds however little there is to do.
"""
USUAL_NODES, USUAL_INDUCING = 16, 1000
"""Assumed numbers of nodes and inducing points where the fit itself finds them."""


class FittedForm(ABC):
    """Mixed into estimators: `form_`, the form of the inputs that they were fitted to, and `channels_`."""

    form_: InputForm
    n_features_in_: int
    stored = Stored(
        fitted={"form_": Field((InputForm,)), "n_features_in_": Field((int,), least=1)},
        sometimes={"feature_names_in_": REPORTED_ARRAY},
    )

    def check_parts(self) -> None:
        """Raise a ValueError where what the estimator holds is of other inputs, outputs or classes."""
        self.form_.check_fitted(self.n_features_in_, self)

    @property
    def channels_(self) -> Order | None:
        """Where images had their channels, "first" or "last"; None where there are none."""
        return self.form_.channels


class FittedProcess(FittedForm, ABC):
    """Mixed into estimators with a posterior of g: new inputs, and the moments of f = L g there."""

    posterior_: Posterior
    functional_: Functional
    kernel_: Kernel

    @property
    def hyperparameters_(self) -> list[Hyperparameter]:
        """What was learned of the kernel and the noise, by name and in the units of the data."""
        check_is_fitted(self)
        unit, scale = self._target_unit()
        noise = np.ravel(getattr(self, "noise_", [])).tolist()
        columns, inputs = self._kernel_columns()
        found = hyperparameters_of(self.kernel_, columns, unit, scale, inputs)
        return found + (noise_parts(noise, unit) if noise else [])

    def _target_unit(self) -> tuple[str, torch.Tensor]:
        """The name of the unit of f, and what it is for each output of the model."""
        return "f", torch.ones(1, dtype=torch.float64)

    def _kernel_columns(self) -> tuple[list[str], str]:
        """Names of the columns that the kernel sees and of all together: of X, or of what L makes of it."""
        width = self.posterior_.width
        if width != self.n_features_in_ or features_of(self.functional_) is not None:
            return numbered("z", width), "z"
        names = getattr(self, "feature_names_in_", None)
        return names_of_columns(None if names is None else list(names), width), "x"

    @property
    def _place(self) -> str:
        return getattr(self, "device_", "cpu")

    def _inputs(self, X: ArrayLike, plain: bool = True) -> torch.Tensor:
        """New inputs [n, d] as they were at the fit: channels first, on the device, without the background.

        Inputs of other functionals (not `plain`) may be pairs [n, 2, d].
        """
        check_is_fitted(self)
        return check_inputs(self, X, plain).to(self._place) - self.form_.background

    def _blocks(self, functional: Functional, x: torch.Tensor) -> Iterator[Block]:
        """The rows to predict, some at a time; functionals that belong to all of x are lowered at once."""
        if functional.is_identity:
            yield from (self.functional_.atoms(part) for part in x.split(ROWS_AT_ONCE))
            return
        rows = (functional @ self.functional_).atoms(x)
        step = max(1, ROWS_AT_ONCE * len(rows.points) // rows.num_rows)
        for start in range(0, len(rows.points), step):
            yield rows.rows(slice(start, start + step))

    @torch.no_grad()
    def _row_moments(self, rows: Iterable[Block]) -> Moments:
        """The posterior moments of rows, with a variance [n, c] for every output."""
        parts = [self.posterior_.row_moments(block) for block in rows]
        mean = torch.cat([part.mean for part in parts])
        # one column for all outputs, or one for each
        variance = torch.cat([part.variance.reshape(len(part.mean), -1) for part in parts])
        return Moments(mean, variance.expand_as(mean), torch.cat([part.mean_square for part in parts]))


class LearnedOrbit(FittedProcess, ABC):
    """Mixed into estimators: `orbit_`, `orbit_errors_`, `sample_orbit` and `insensitivity`."""

    orbit_: Any
    fit_result_: FitResult
    invariance: Invariance
    features: Features | None
    random_state: int | np.random.RandomState | None
    callback: Callback | None
    verbose: bool
    _clock = staticmethod(time.monotonic)
    _processes: Processes = ALONE
    shares_rows = False
    """Whether several processes can share a fit, each with its part of the rows."""
    stored = Stored(fitted={**EVIDENCE, **LEARNED}, sometimes={"device_": TEXT, **SEARCHED})

    @property
    def features_(self) -> Features | None:
        """φ as it is used: the copy of a module, or the fitted transformer; None where there is none."""
        check_is_fitted(self)
        found = features_of(self.functional_)
        return None if found is None else found.source

    def _generator(self, device: str = "cpu") -> torch.Generator:
        """A generator seeded by `random_state`."""
        seed = int(check_random_state(self.random_state).randint(2**31))
        return torch.Generator(device).manual_seed(self._processes.from_first(seed))

    def _begin(self, x: Rows, previous: LatentModel | None = None) -> tuple[Functional, Rows]:
        """The functional of f to be learned, on the CPU, and the rows without their background.

        It is that of a `previous` model, or a copy of the one that `invariance` names. Sets `orbit_`.
        """
        if previous is None:
            functional = copy.deepcopy(functional_of(self.invariance, x.shape[1], input_shape(self)))
        else:
            functional = without_features(previous.functional.cpu())
        functional = functional.double()
        self._set_orbit(functional, x)
        if self.features is not None:
            assert isinstance(x, np.ndarray), "rows that stay where they are have no features"
            functional = through_features(self, functional, x)
        return functional, x - self.form_.background

    @contextmanager
    def _reporter(self, what: str, max_seconds: float | None = None) -> Iterator[Reporter]:
        """What an engine reports to: the callback, and with `verbose` a bar; Ctrl-C and time end the fit."""
        processes = self._processes
        bar_or_none = nullcontext()
        if self.verbose and processes.is_first:
            from orbitwise.inference.optimise.bar import Bar  # rich takes long to import

            bar_or_none = Bar(what)
        with bar_or_none as bar:
            callbacks = (bar, self.callback) if processes.is_first else ()
            reporter = Reporter(*callbacks, max_seconds=max_seconds, clock=self._clock, processes=processes)
            with reporter.interruptible():
                yield reporter

    def _set_orbit(self, functional: Functional, x: Rows) -> None:
        """Remember the orbit of rows, to be learned or finite, and what counts as background.

        Warps fill with zeros, so the darkest value of images is taken off; kernels of distances do not mind.
        """
        self.orbit_ = orbit_in(functional, x.shape[1])
        shape = self.form_.image_shape
        if isinstance(self.orbit_, FiniteOrbit) and shape is not None:
            self.orbit_.image_shape = check_image_shape(shape)
        self._warn_if_idle(x)
        is_warped = bool(learnable_orbits(functional)) and shape is not None
        self.form_ = replace(self.form_, background=float(x.min()) if is_warped else 0.0)

    def _warn_if_idle(self, x: Rows) -> None:
        """Warn of an orbit all of whose moves are off."""
        if not isinstance(self.orbit_, DrawnOrbit) or bool(self.orbit_.active.any()):
            return
        row = torch.from_numpy(np.array(x[slice(0, 1)]))
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            moved = self.orbit_.move(row, self.orbit_.noise((1, 8), generator, row))
        if torch.allclose(moved, row[:, None].expand_as(moved)):
            warnings.warn(
                f"{type(self.orbit_).__name__} has no move that is on, so that it changes nothing: give it a "
                "range, such as angle=0.5 or shift=1.0, or leave out the invariance.",
                UserWarning,
                stacklevel=users_level(sys._getframe()),
            )

    def _set_result(self, result: FitResult, process: Process) -> None:
        """Remember what an engine found: posterior, evidence, how learning went, and how sure ranges are."""
        for name in ("certificate_", *SEARCHED):
            vars(self).pop(name, None)
        self.fit_result_ = result if self._processes.is_alone else result.without_rows()
        self.posterior_, self.functional_ = result.posterior, result.functional
        if self.features is not None and (features := features_of(result.functional)) is not None:
            features.forget()
        self.kernel_ = process.kernel
        self.log_evidence_, self.evidence_kind_ = result.log_evidence, result.kind
        self.log_evidence_error_ = result.standard_error
        self.converged_, self.history_ = result.converged, list(result.history)
        if result.certificate is not None:
            self.certificate_ = result.certificate
        if result.stopped:
            self.stopped_by_ = result.stopped
        if result.search is None:
            return
        found = result.search.found
        self._num_nodes = found.num_nodes
        self.search_ = [asdict(stage) for stage in found.stages]
        self.stopped_by_ = result.stopped or found.message
        if self.orbit_ is not None and found.curvature is not None:
            self._orbit_errors, self._orbit_intervals = searched_errors(
                self.orbit_.learned, result.search.coordinates, found
            )

    @property
    def orbit_intervals_(self) -> dict[str, tuple[float, float]]:
        """The interval that holds the upper end of every learned range with 95 %; one-sided at a bound."""
        errors = self.orbit_errors_
        if hasattr(self, "_orbit_intervals"):
            return self._orbit_intervals
        found = {}
        for name, error in errors.items():
            low, high = self.orbit_.learned()[name]
            # the width of a range about zero is not negative, and may be zero
            least = 0.0 if low <= 0 <= high else -math.inf
            found[name] = (max(least, high - NORMAL * error) if high else 0.0, high + NORMAL * error)
        return found

    @property
    def orbit_errors_(self) -> dict[str, float]:
        """The standard error of every learned range, by the evidence's curvature and the choice of nodes.

        After exact inference on nodes it is known; else it is computed when asked for, by curvature alone;
        after a stochastic fit by that of the bound on some of the rows, at one set of draws.
        """
        check_is_fitted(self)
        if not self.knows_orbit_errors:
            objective, parameters = self.fit_result_.objective, list(self.fit_result_.parameters)
            with torch.inference_mode(False), torch.enable_grad():
                self._orbit_errors = range_errors(self.orbit_, objective, parameters)
        return getattr(self, "_orbit_errors", {})

    @property
    def knows_orbit_errors(self) -> bool:
        """Whether asking for `orbit_errors_` computes nothing: they are known, or no range is learned."""
        return self.orbit_ is None or not self.orbit_.learned() or hasattr(self, "_orbit_errors")

    def expected_error_seconds(self) -> float:
        """How long `orbit_errors_` will take to compute; 0 where it is known already."""
        if self.knows_orbit_errors:
            return 0.0
        return expected_seconds(self.fit_result_.objective, list(self.fit_result_.parameters), self.orbit_)

    @answering
    def sample_orbit(
        self, X: ArrayLike, n: int = 8, random_state: int | np.random.RandomState | None = 0
    ) -> NDArray[np.float64]:
        """n random points of the orbit of every row of X, laid out as these are: [rows, n, features]."""
        x = self._inputs(X)
        if self.orbit_ is None:
            moved = x[:, None].expand(-1, n, -1)
        else:
            orbit, noise = self._drawn(x, n, random_state)
            with torch.no_grad():
                moved = orbit.move(x, noise)
        return self.form_.outward(moved.cpu().numpy() + self.form_.background)

    @torch.no_grad()
    def _drawn(
        self, x: torch.Tensor, n: int, random_state: int | np.random.RandomState | None
    ) -> tuple[DrawnOrbit, torch.Tensor]:
        """The orbit in its drawn form, and the noise [rows, n, p] of n moves of every row."""
        seed = int(check_random_state(random_state).randint(2**31))
        orbit = drawn_form(self.orbit_)
        return orbit, orbit.noise((len(x), n), torch.Generator(self._place).manual_seed(seed), x)

    def insensitivity(
        self, X: ArrayLike, n: int = 4, random_state: int | np.random.RandomState | None = 0
    ) -> dict[str, dict[str, float]]:
        """How much f changes under its orbit, by all its moves together and by each alone.

        E[(f(x) - f(x_a))²] over the prior variance of f(x), under prior and posterior. A function of which x
        tells nothing about x_a has a prior change of 2, an invariant one of 0 (LIM-A eq. 5).
        """
        x = self._inputs(X)
        if self.orbit_ is None:
            return {}
        orbit, noise = self._drawn(x, n, random_state)
        with torch.no_grad():
            return {name: self._change(x, orbit.move(x, noise * mask)) for name, mask in self._moves(noise)}

    def _moves(self, noise: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Masks of the noise that leave one named move each; "deformation" is what has no bounds."""
        moves = [("all", torch.ones_like(noise[0, 0]))]
        bounds = getattr(self.orbit_, "bounds", None)
        if bounds is None or len(bounds.names) > noise.shape[-1]:
            return moves
        place = torch.arange(noise.shape[-1], device=noise.device)
        moves += [
            (name, (place == i).to(noise))
            for i, name in enumerate(bounds.names)
            if name in bounds.intervals()
        ]
        if len(bounds.names) < noise.shape[-1]:
            moves.append(("deformation", (place >= len(bounds.names)).to(noise)))
        return moves

    def _change(self, x: torch.Tensor, moved: torch.Tensor) -> dict[str, float]:
        pairs = torch.stack([x[:, None].expand_as(moved), moved], dim=2).flatten(0, 1)
        functional = Difference() @ self.functional_
        process = self.posterior_.process  # pyright: ignore[reportAttributeAccessIssue]
        rows = [functional.atoms(part) for part in pairs.split(256)]
        scale = process.variance(self.functional_.atoms(x)).repeat_interleave(moved.shape[1])
        prior = torch.cat([process.variance(part) for part in rows])
        posterior = torch.cat([self.posterior_.row_moments(part).mean_square.mean(-1) for part in rows])
        return {"prior": float((prior / scale).mean()), "posterior": float((posterior / scale).mean())}


class EngineEstimator(LearnedOrbit, ABC):
    """Mixed into estimators that run one of three engines: their settings, starts, and evidence elsewhere."""

    shares_rows = True
    checkpoint: str | None
    warm_start: bool
    num_nodes: int | None
    max_nodes: int | None
    max_seconds: float | None
    max_iterations: int | None
    num_restarts: int
    num_inducing: int | Literal["auto"]
    max_memory: float | None
    num_steps: int | None
    batch_size: int
    device: str
    device_: str
    model_: RegressionModel
    inference_: EngineName
    tilts: Tilts = "remembered"
    stored = Stored(sometimes=CLIMBED)

    def _set_result(self, result: FitResult, process: Process) -> None:
        super()._set_result(result, process)
        for name in CLIMBED:
            vars(self).pop(name, None)
        if result.climbed is not None:
            climbed = result.climbed
            self.num_inducing_, self.inducing_stopped_by_ = climbed.num_inducing, climbed.stopped_by
            self.climb_ = [rung._asdict() for rung in climbed.rungs]

    def check_parts(self) -> None:
        super().check_parts()
        self.model_.check_fits(self.n_features_in_, self.posterior_.num_outputs)

    def _choose_device(self, functional: Functional, x: Inputs) -> None:
        """Set `device_`, where the engine `inference_` is to work."""
        num_inducing = None
        if self.inference_ != "exact":
            num_inducing = USUAL_INDUCING if self.num_inducing == "auto" else self.num_inducing
        self.device_ = chosen_device(self.device, work_of(functional, x, self.num_nodes, num_inducing))

    def _previous(self, width: int) -> LatentModel | None:
        """The model of the last fit where this one starts from it: a warm start, on as many features."""
        last: RegressionModel | None = getattr(self, "model_", None) if self.warm_start else None
        return None if last is None or last.width != width else last.latent

    def begin_at(self, start: Start) -> None:
        """Have the next fit, by exact inference, resume from a member's solution; later ones begin anew."""
        self._start = start

    @torch.no_grad()
    def evidence_on(self, freeze: Callable[[Functional], Functional]) -> float:
        """The exact evidence of the training data with the functional frozen by `freeze`, on other nodes."""
        model = self.model_.at(freeze(self.model_.latent.functional))
        return float(model.exact.evidence()) - model.log_unit

    def _run(
        self,
        model: LatentModel,
        observations: tuple[Observations, ...],
        generator: torch.Generator,
        labels: torch.Tensor | None = None,
        noise_of_labels: NoiseOfLabels = "evidence",
    ) -> FitResult:
        """What the engine `inference_` finds, from the solution of a member where one was given."""
        if self.inference_ == "exact":
            self._processes.do_alone()
        observations = tuple(replace(each, processes=self._processes) for each in observations)
        start: Start | None = vars(self).pop("_start", None)
        if start is not None:
            adopt([model], [start.member.model_.latent])
        settings = FitSettings(
            generator,
            self.num_nodes,
            self.max_nodes,
            self.max_seconds,
            iterations_of(self),
            self.num_restarts,
            None if self.num_inducing == "auto" else int(self.num_inducing),
            self.num_steps,
            self.batch_size,
            self.tilts,
            max_memory=self.max_memory,
            labels=labels,
            noise_of_labels=noise_of_labels,
        )
        if start is not None and self.inference_ == "exact":
            resumed = (start.num_nodes, start.max_iterations)
            settings = replace(
                settings, num_nodes=resumed[0], max_iterations=resumed[1], num_restarts=0, is_resumed=True
            )
        else:
            settings = replace(settings, progress=self._progress(model, observations, generator))
        with self._reporter(f"{self.inference_} inference", self.max_seconds) as reporter:
            return run_engine(self.inference_, model, observations, replace(settings, reporter=reporter))

    def _progress(
        self, model: LatentModel, observations: tuple[Observations, ...], generator: torch.Generator
    ) -> Progress | None:
        """What a fit that starts from these parts leaves in the folder `checkpoint`, to resume from."""
        if self.checkpoint is None or not self._processes.is_first:
            return None
        names = ("num_nodes", "max_nodes", "max_iterations", "num_restarts", "num_inducing", "num_steps")
        settings = {name: getattr(self, name) for name in (*names, "batch_size")}
        if self.tilts != "remembered":
            settings["tilts"] = self.tilts
        data = [(each.functional, *each.tensors) for each in observations]
        return Progress.of(self.checkpoint, self.inference_, settings, model, data, generator)


class RegressionPredictions(FittedProcess, ABC):
    """Mixed into regressors: predictions of f and of its functionals, in units of the targets."""

    model_: RegressionModel
    target_scale_: TargetScale
    stored = Stored(fitted={"target_scale_": Field((TargetScale,))})

    def check_parts(self) -> None:
        super().check_parts()
        self.target_scale_.check_fits(self.posterior_, self._likelihood, getattr(self, "noise_", None))

    @property
    def _likelihood(self) -> Likelihood:
        """The likelihood of standardised targets."""
        check_is_fitted(self)
        return self.model_.latent.likelihood

    def _target_unit(self) -> tuple[str, torch.Tensor]:
        """Targets are f plus noise, or f is on a scale of its own, such as that of a logarithm."""
        return ("y", self.target_scale_.scale) if self._likelihood.is_additive else super()._target_unit()

    def _standardised_noise(self) -> torch.Tensor:
        """The variance of Gaussian noise of a standardised target."""
        assert isinstance(self._likelihood, Gaussian)
        return self._likelihood.noise.detach()

    def _other_likelihood(self) -> Likelihood | None:
        """The likelihood of standardised targets where it is not Gaussian noise."""
        return None if isinstance(self._likelihood, Gaussian) else self._likelihood

    @answering
    def predict(
        self,
        X: ArrayLike | Source,
        return_std: bool = False,
        return_cov: bool = False,
        include_noise: bool = True,
    ) -> Any:
        """The mean of new targets, and their deviation or covariance.

        Under Gaussian noise, mean ± 1.96 deviations should hold 95 % of new targets y = f(x) + noise; under
        other likelihoods `predict_quantiles` says what does. With `include_noise=False` the deviation or
        covariance is that of f alone (of counts, of their rate), which says how well the function itself is
        known. Large data are read in blocks.
        """
        if return_std and return_cov:
            raise ValueError("At most one of return_std and return_cov can be asked for.")
        if (parts := input_parts(self, X)) is not None:
            if return_cov:
                raise ValueError("return_cov is about all rows together: give some of them, as an array.")
            return joined(self.predict(part, return_std, False, include_noise) for part in parts)
        X = cast(ArrayLike, X)
        likelihood = self._other_likelihood()
        if likelihood is not None:
            return self._predict_other(likelihood, X, return_std, return_cov, include_noise)
        return self._predict(Evaluation(), X, return_std, return_cov, include_noise)

    @answering
    def predict_quantiles(
        self, X: ArrayLike | Source, quantiles: float | Sequence[float] = (0.025, 0.5, 0.975)
    ) -> NDArray[np.float64]:
        """Targets that a new one stays below with these probabilities: [n, quantiles], or [n, outputs, …].

        The default is a 95 % interval and the median between its ends. Counts are whole numbers.
        """
        if (parts := input_parts(self, X)) is not None:
            return joined(self.predict_quantiles(part, quantiles) for part in parts)
        likelihood = self._other_likelihood()
        moments = self._row_moments(self._blocks(Evaluation(), self._inputs(cast(ArrayLike, X))))
        levels = [float(level) for level in np.atleast_1d(np.asarray(quantiles, dtype=np.float64))]
        with torch.no_grad():
            if likelihood is None:
                noise = self._standardised_noise().to(moments.mean)
                deviation = (moments.variance + noise).sqrt()
                values = [moments.mean + deviation * _normal_quantile(level) for level in levels]
            else:
                values = [likelihood.predict_quantile(moments, level) for level in levels]
        scale = self.target_scale_
        return np.stack([scale.as_given(scale.targets(each)) for each in values], axis=-1)

    @answering
    def predict_functional(
        self, functional: Functional, X: ArrayLike, return_std: bool = False, return_cov: bool = False
    ) -> Any:
        """The posterior mean of another functional of f, say its slopes `Gradient()`, and its deviation."""
        return self._predict(functional, X, return_std, return_cov, include_noise=False)

    @answering
    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: int | np.random.RandomState | None = 0
    ) -> NDArray[np.float64]:
        """Joint posterior draws of f: [n, n_samples], or [n, outputs, n_samples] for several outputs.

        Of counts, draws of their rate.
        """
        x = self._inputs(X)
        generator = torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31)))
        with torch.no_grad():
            rows = self.functional_.atoms(x)
            draws = self.posterior_.sample(rows, n_samples, generator)
            likelihood = self._other_likelihood()
            if likelihood is not None:
                draws = likelihood.conditional_mean(draws.permute(2, 0, 1)).permute(1, 2, 0)
            draws = self.target_scale_.targets(draws.mT).mT
        return np.ascontiguousarray((draws[:, 0] if self.target_scale_.is_vector else draws).numpy())

    def _predict(
        self, functional: Functional, X: ArrayLike, return_std: bool, return_cov: bool, include_noise: bool
    ) -> Any:
        x = self._inputs(X, plain=functional.is_identity)
        with torch.no_grad():
            to = self.target_scale_
            unit = to.scale.square()
            noise = unit * (self._standardised_noise().cpu() if include_noise else 0.0)
            blocks = self._blocks(functional, x)
            shift = constant_part(functional, x).cpu()[:, None] * to.shift
            if return_std:
                moments = self._row_moments(blocks)
                mean = to.as_given(moments.mean.cpu() * to.scale + shift)
                return mean, to.as_given((moments.variance.cpu() * unit + noise).sqrt())
            standardised = torch.cat([self.posterior_.row_mean(block) for block in blocks])
            mean = to.as_given(standardised.cpu() * to.scale + shift)
            if return_cov:
                spread = self.posterior_.covariance((functional @ self.functional_).atoms(x))
                spread = spread.cpu()[..., None] * unit
                identity = torch.eye(len(spread), dtype=spread.dtype)[..., None]
                return mean, to.as_given(spread + noise * identity)
        return mean

    def _predict_other(
        self, likelihood: Likelihood, X: ArrayLike, return_std: bool, return_cov: bool, include_noise: bool
    ) -> Any:
        """The mean of new targets under a likelihood that is not Gaussian noise, and their spread."""
        if return_cov:
            raise ValueError(
                f"return_cov needs Gaussian noise, not {type(likelihood).__name__}: use return_std, or draws "
                "from sample_y."
            )
        moments = self._row_moments(self._blocks(Evaluation(), self._inputs(X)))
        to = self.target_scale_
        with torch.no_grad():
            mean = to.as_given(to.targets(likelihood.predict(moments)))
            if not return_std:
                return mean
            variance = likelihood.predict_variance(moments, include_noise).cpu()
            return mean, to.as_given((variance * to.scale.square()).sqrt())


def _normal_quantile(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"A quantile lies strictly between 0 and 1, not at {level!r}.")
    return NormalDist().inv_cdf(level)


def chosen_device(device: object, work: float, num_gpus: int | None = None) -> str:
    """The device of a name; "auto" is the GPU if there is one and the work is worth it, else the CPU.

    `work` counts rows × nodes × inducing points × columns. `num_gpus` are those there are, by default those
    that torch finds. Raises a ValueError for a device that is not there.
    """
    gpus = torch.cuda.device_count() if num_gpus is None else num_gpus
    name = str(device)
    if name == "auto":
        return "cuda" if gpus and work >= WORTH_A_GPU else "cpu"
    found = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", name)
    instead = "take device='auto' (the GPU if there is one, else the CPU) or device='cpu'"
    if found is None:
        why = " Apple's GPUs have no double precision." if name.startswith("mps") else ""
        raise ValueError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:1', not {device!r}.{why}")
    if name != "cpu" and not gpus:
        raise ValueError(f"device={name!r}, but torch finds no CUDA GPU here: {instead}.")
    if found[1] is not None and int(found[1]) >= gpus:
        raise ValueError(f"device={name!r}, but there are only {gpus} GPUs, from 'cuda:0' on: {instead}.")
    return name


def work_of(functional: Functional, x: Inputs, num_nodes: int | None, num_inducing: int | None) -> float:
    """Rows × nodes × inducing points × columns of an evaluation.

    Exact inference has all nodes of all rows for inducing points, and `num_inducing` is None. `num_nodes` is
    None where they are found by the fit.
    """
    with torch.no_grad():
        frozen = freeze_at(functional, USUAL_NODES if num_nodes is None else num_nodes)
        nodes, columns = frozen.atoms(x[:1]).points.shape[-2:]
    points = float(len(x)) * nodes
    return points * (points if num_inducing is None else num_inducing) * columns


def resolve_likelihood(given: str | Likelihood, named: Mapping[str, Callable[[], Likelihood]]) -> Likelihood:
    """The likelihood of this name, or a copy of an instance; an instance of any class is taken."""
    if isinstance(given, Likelihood):
        return copy.deepcopy(given).double()
    if not isinstance(given, str) or given not in named:
        names = ", ".join(map(repr, named))
        raise ValueError(f"likelihood must be one of {names}, or a Likelihood, not {given!r}.")
    return named[given]()
