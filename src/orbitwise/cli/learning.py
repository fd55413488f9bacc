"""One run of `orbitwise learn`: every candidate is fitted and saved, and the best becomes the model."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import itertools
import json
import os
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from rich.console import Console

from orbitwise.cli.columns import estimator_of
from orbitwise.cli.data import Data, Task, checked_targets, checked_test_targets
from orbitwise.cli.errors import CommandError, sentence
from orbitwise.cli.estimators import COMPARED, Choice, class_of, settings_of
from orbitwise.cli.folders import FORMAT, Folder, digest_of, file_digest
from orbitwise.cli.invariances import IMAGE_CANDIDATES, has_images, parse
from orbitwise.cli.models import measure
from orbitwise.cli.showing import Metrics, comparison_table, write_picture
from orbitwise.cli.watching import Stopwatch, Watch, seconds_in
from orbitwise.estimators.classifier import InvariantGPClassifier
from orbitwise.estimators.convergence import (
    argument_to_raise,
    fit_quietly,
    iterations_of,
    num_nodes_of,
    shortfall,
    steps_of,
)
from orbitwise.estimators.invariances import NAMES, Invariance
from orbitwise.estimators.regressor import InvariantGPRegressor
from orbitwise.estimators.sparse_regressor import SparseGPRegressor
from orbitwise.estimators.validation import check_settings, check_sizes, layout_of
from orbitwise.inference.optimise.watching import Reporter
from orbitwise.report import record_ranges, write_report
from orbitwise.selection.compare import (
    Candidate,
    Comparison,
    candidate_of,
    fit_from_member,
    judge,
    learned_text,
)
from orbitwise.selection.differences import CommonNodes
from orbitwise.storage import StorageError, load
from orbitwise.storage.models import packed

Estimator = InvariantGPClassifier | InvariantGPRegressor | SparseGPRegressor
MOST_EXAMPLES = 2000
KEPT = (
    *("name", "log_evidence", "standard_error", "per_datum", "evidence_kind"),
    *("difference", "difference_error", "seconds"),
)
"""What of a candidate is written to comparison.json as it is."""
LEAST_TOLD = 0.05
"""Seconds of a part of a run that are worth a word."""
ERROR_SECONDS = 20.0
"""The command computes error bars of learned ranges, for its report, if that takes no longer."""


@final
@dataclass(frozen=True)
class Plan:
    """What is to be learned, and how.

    Attributes
    ----------
    task : {"classification", "regression"}
        Which estimator is fitted.
    names : sequence of str
        The invariances to compare, as they are written on the command line.
    seed : int
        Seed of everything that is drawn at random.
    device : str
        Where to compute.
    options : dict
        Further parameters of the estimators, such as `num_nodes`; texts are read by their annotations.
    choice : str
        Which kind of estimator, as in `CLASSES`.
    """

    task: Task
    names: Sequence[str]
    seed: int = 0
    device: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    choice: Choice = "gp"

    @property
    def kind(self) -> type[Any]:
        """The class of the estimator."""
        return class_of(self.choice, self.task)

    def settings(self, data: Data) -> dict[str, Any]:
        """What must be the same for a run to be resumed."""
        return {
            "rows": len(data),
            "inputs": data.X.shape[1],
            "target": data.target,
            "digest": _digest(data),
            # the same numbers in another order are other images
            **({} if data.channels is None else {"channels": data.channels}),
            "task": self.task,
            "invariances": list(self.names),
            "seed": self.seed,
            "device": self.device,
            "options": dict(self.options),
            **({} if self.choice == "gp" else {"estimator": self.choice}),
        }

    def invariances(self, data: Data) -> dict[str, Invariance]:
        """The invariances of these names for these data, or an error that says why they cannot be used."""
        return {name: self.invariance(name, data) for name in self.names}

    def invariance(self, name: str, data: Data) -> Invariance:
        """The invariance of a name for these data; kernel machines have other names, and check them."""
        is_own = name in NAMES and "average" not in NAMES[name].uses
        return name if is_own and self.choice not in COMPARED else parse(name, data)

    def estimator(self, data: Data, invariance: Invariance) -> Any:
        """The estimator for the task, not fitted. Without names its own default is not changed."""
        kind, known = self.kind, inspect.signature(self.kind).parameters
        usual = {
            "image_shape": data.shape if has_images(self.names, data) else None,
            "channels": "auto" if data.channels is None else data.channels,
            "random_state": self.seed,
            "device": self.device,
            **({"invariance": invariance} if self.names else {}),
        }
        own = {name: value for name, value in usual.items() if name in known}
        return kind(**own, **settings_of(kind, self.options))


def demo_plan(seed: int = 0, device: str = "auto", options: Mapping[str, Any] | None = None) -> Plan:
    """The usual candidates for images, with the options of their estimators, usually none."""
    return Plan("classification", IMAGE_CANDIDATES, seed, device, {} if options is None else options)


@final
@dataclass(frozen=True)
class Outcome:
    """What a run found.

    `comparison` ranks the candidates by their evidence; `stopped` says of those that ended early, by name,
    why: "interrupted", "time limit" or "not started".
    """

    comparison: Comparison
    stopped: Mapping[str, str]

    @property
    def shortfalls(self) -> str:
        """One line for all candidates that ended by themselves, but before they had converged."""
        ended = [each for each in self.comparison.candidates if each.name not in self.stopped]
        by_argument: dict[str, list[Candidate]] = {}
        for each in ended:
            if shortfall(each.estimator) is not None:
                by_argument.setdefault(argument_to_raise(each.estimator), []).append(each)
        parts = []
        for argument, limited in by_argument.items():
            names, option = ", ".join(each.name for each in limited), f"--{argument.replace('_', '-')}"
            parts.append(
                f"{names} did not converge within {option} {_limit(limited[0].estimator, argument)}; a "
                f"larger {option} may still raise the evidence"
            )
        return "; ".join(parts)


def _limit(estimator: Estimator, argument: str) -> object:
    """The value of an argument, or what None stood for."""
    if argument == "num_steps":
        return steps_of(estimator)
    value = iterations_of(estimator) if argument == "max_iterations" else getattr(estimator, argument)
    return num_nodes_of(estimator) if value is None else value


@final
class Learner:
    """The fits of one run: each candidate is saved as soon as it is learned, and is not fitted again.

    A fit also keeps its progress in the folder. A run that was killed is therefore continued by another
    process, with --resume, where it stopped, and it ends with the same model. A candidate whose model cannot
    be saved is left out of the comparison.
    """

    def __init__(self, data: Data, plan: Plan, folder: Folder, watch: Watch) -> None:
        self.data, self.plan, self.folder, self.watch = data, plan, folder, watch
        self.settings = plan.settings(data)
        self.invariances = plan.invariances(data)
        self.stopped: dict[str, str] = {}
        self.loaded: set[str] = set()
        self.fit_seconds = 0.0

    def learn(self) -> Outcome:
        """Fit what is not fitted yet; a candidate that ended early is only continued by a later run."""
        fitted: list[Candidate] = []
        with self.watch.signals():
            for number, name in enumerate(self.invariances):
                found, reason = self._finished(name), None
                if found is None and self.watch.is_over and fitted:
                    reason = "not started"
                elif found is None:
                    began = time.perf_counter()
                    found, reason = self._fit(name, self.watch, 1 / (len(self.invariances) - number))
                    self.fit_seconds += time.perf_counter() - began
                fitted += [] if found is None else [found]
                self.stopped |= {} if reason is None else {name: reason}
            if not fitted and self.stopped:
                raise KeyboardInterrupt
            if not fitted:
                raise CommandError("no candidate could be saved, so there is no model; see the notes above")
            # a resumed fit knows no bound of half as many inducing points, and must end as an unbroken one
            same = [replace(each, half_bound=None) for each in fitted]
            comparison = judge(same, self.data.X, self.data.targets, self._refit)
        kept = comparison.best
        best = self._with_errors(kept)
        candidates = tuple(best if each is kept else each for each in comparison.candidates)
        return Outcome(replace(comparison, candidates=candidates), self.stopped)

    def file(self, name: str) -> Path:
        """Where the model of a candidate is."""
        return self.folder.candidate(list(self.invariances).index(name), name)

    def _fit(self, name: str, watch: Watch, share: float = 1.0) -> tuple[Candidate | None, str | None]:
        """A candidate, fitted and saved, and why it ended early."""
        progress = self.folder.progress(list(self.invariances).index(name), name)
        estimator = self.plan.estimator(self.data, self.invariances[name])
        stopwatch = Stopwatch(progress / "seconds.txt")
        with watch.candidate(name, share) as listener:

            def keep(step: int, bound: float) -> None:
                stopwatch.keep()

            estimator.set_params(checkpoint=str(progress), callback=Reporter(keep, listener))
            ranges = record_ranges(estimator)
            try:
                fit_quietly(estimator, self.data.X, self.data.y)
            except KeyboardInterrupt:
                return None, "interrupted"
            finally:
                stopwatch.keep(0.0)
        estimator.set_params(checkpoint=None, callback=None)
        if self.data.columns is not None:
            vars(estimator)["feature_names_in_"] = np.array(self.data.columns, dtype=object)
        reason = listener.reason
        found = candidate_of(name, estimator, stopwatch.seconds, len(self.data))
        try:
            content = packed(estimator, error_seconds=0)
        except StorageError as error:
            self._note(f"{name} is left out, because its model cannot be saved ({sentence(error)})")
            return None, None
        self._keep(found, content, stopped=reason)
        # what was recorded is for the report, and is not stored
        ranges.then = None
        estimator.set_params(callback=ranges)
        return found, reason

    def _refit(
        self, candidate: Candidate, member: Candidate, nodes: CommonNodes, X: ArrayLike, y: ArrayLike
    ) -> Candidate:
        """Fit a family again that ended behind its member, and keep what is better, unless time is over."""
        if self.watch.is_over:
            return candidate
        begun = candidate.estimator
        name = f"{candidate.name} from {member.name}"
        with self.watch.candidate(name) as listener:
            found = fit_from_member(candidate, member, nodes, X, y, listener)
        if found.estimator is not begun:
            found.estimator.set_params(checkpoint=None, callback=None)
            # a replay of its progress would lead to the first fit, so its error bars are stored now
            reason = self.stopped.get(candidate.name)
            try:
                content = packed(found.estimator)
            except StorageError as error:
                self._note(f"{name} is not used, because its model cannot be saved ({sentence(error)})")
                return candidate
            self._keep(found, content, continued_from=member.name, stopped=reason)
        return found

    def _with_errors(self, best: Candidate) -> Candidate:
        """Save the best candidate as the model, with error bars of what it learned.

        These need a fit: a candidate of an earlier run is replayed, in full, from the progress it left.
        """
        with contextlib.suppress(CommandError, StorageError):
            _, done = self.folder.one_run()
            if done.get("finished") and done.get("best") == best.name:
                model = estimator_of(load(self.folder.model, self.plan.device))
                return replace(best, estimator=model)
        orbit = best.estimator.orbit_
        about = self.folder.read(self.file(best.name).with_suffix(".json")) or {}
        is_replayed = best.name in self.loaded and about.get("continued_from") is None
        if is_replayed and orbit is not None and orbit.learned():
            again, _ = self._fit(best.name, Watch(self.watch.console))
            if again is not None:
                best = replace(best, estimator=again.estimator, seconds=again.seconds)
        callback = best.estimator.callback
        content = packed(self.data.piped(best.estimator.set_params(callback=None)), ERROR_SECONDS)
        best.estimator.set_params(callback=callback)
        self.folder.write_bytes(self.folder.model, content)
        return best

    def _keep(self, candidate: Candidate, content: bytes, **about: str | None) -> None:
        """Write the file of a candidate, and what ties it to its data and settings."""
        file = self.file(candidate.name)
        self.folder.write_bytes(file, content)
        tied = {"digest": self._digest(candidate.name), "sha256": file_digest(file)}
        self.folder.write(
            file.with_suffix(".json"),
            {"name": candidate.name, "seconds": candidate.seconds, **about, **tied},
        )

    def _finished(self, name: str) -> Candidate | None:
        """A candidate that an earlier process fitted to the end, from these data and with these settings."""
        file = self.file(name)
        try:
            about = self.folder.read(file.with_suffix(".json"))
            # a process that was killed leaves a model about which nothing was written yet
            if about is None or about.get("stopped") is not None or not file.is_file():
                return None
            if about.get("digest") != self._digest(name):
                raise CommandError("it was learned from other data or with other settings")
            if about.get("sha256") != file_digest(file):
                raise CommandError("it was changed after it was learned")
            model, seconds = load(file, self.plan.device), seconds_in(about.get("seconds"))
            self.loaded.add(name)
            return candidate_of(name, model, seconds, len(self.data))
        except (CommandError, StorageError, OSError) as error:
            kept = f", but kept as {_set_aside(file).name}" if os.path.lexists(file) else ""
            self._note(f"{file} is not used ({sentence(error)}){kept}; {name} is learned again")
            return None

    def _note(self, text: str) -> None:
        self.watch.console.print(f"note: {text}", markup=False, soft_wrap=True)

    def _digest(self, name: str) -> str:
        """What ties a candidate to its data and settings, whatever it is compared with."""
        return digest_of({**self.settings, "invariances": name})


@final
class Run:
    """One `orbitwise learn`, from checked data and settings to the report.

    Whatever a fit would refuse is refused when a run is made, before --force replaces any results.
    """

    def __init__(
        self,
        data: Data,
        test: Data | None,
        plan: Plan,
        folder: Folder,
        console: Console,
        about: Mapping[str, str],
    ) -> None:
        self.plan, self.folder, self.console, self.about = plan, folder, console, about
        self.data = replace(data, y=checked_targets(data.targets, plan.task, data.target))
        self.test = test
        if test is not None:
            self.test = replace(test, y=checked_test_targets(test, self.data.targets, plan.task))
        for invariance in plan.invariances(self.data).values():
            check_settings(plan.estimator(self.data, invariance))
        is_numbers = plan.task == "regression"
        check_sizes(
            np.asarray(data.X, dtype=np.float64),
            np.asarray(self.data.targets, dtype=np.float64) if is_numbers else None,
        )

    def learn(
        self,
        resume: bool = False,
        force: bool = False,
        time_limit: float | None = None,
        with_report: bool = True,
    ) -> Outcome:
        """Learn, save, measure, write the report, and say what was found.

        An earlier run in the folder is continued if `resume`, and replaced if `force`; otherwise a folder
        that is not empty is an error. After `time_limit` seconds the run ends with the best so far.
        """
        began = time.perf_counter()
        with self.folder.writing():
            settings = {**self.about, **self.plan.settings(self.data), "versions": versions()}
            if self.folder.prepare(settings, resume, force):
                self.console.print(f"resuming {self.folder.path}", markup=False)
            self._write_examples()
            for note in (*self.data.notes, *(() if self.test is None else self.test.notes)):
                self._say(f"note: {note}")
            learner = Learner(self.data, self.plan, self.folder, Watch(self.console, time_limit))
            outcome = learner.learn()
            metrics = self._measures(outcome.comparison)
            self.folder.write(self.folder.comparison, self._summary(learner, outcome, metrics))
            if not outcome.stopped:
                shutil.rmtree(self.folder.path / "progress", ignore_errors=True)
            self._tell(outcome, metrics)
            compared = time.perf_counter()
            if with_report:
                self._write_report(outcome.comparison)
        self._tell_time(learner.fit_seconds, compared - began, time.perf_counter() - compared)
        return outcome

    def _tell_time(self, fits: float, until_report: float, report: float) -> None:
        """Where the seconds of this run went; the table has those of all runs on a candidate."""
        parts = {"fits": fits, "comparison and error bars": until_report - fits, "report": report}
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items() if seconds >= LEAST_TOLD)
        self._say(f"seconds: {until_report + report:.1f}" + (f" ({told})" if told else ""))

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def _write_examples(self) -> None:
        """Keep some rows for the report."""
        arrays: dict[str, Any] = {}
        for name, part in (("train", self.data), ("test", self.test)):
            if part is not None:
                some = part.take(MOST_EXAMPLES, self.plan.seed)
                arrays |= {f"x_{name}": some.X, f"y_{name}": some.y}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        self.folder.write_bytes(self.folder.examples, buffer.getvalue())

    def _measures(self, comparison: Comparison) -> Metrics:
        if self.test is None:
            return {}
        x, y = self.test.X, self.test.targets
        return {each.name: measure(each.estimator, x, y) for each in comparison.candidates}

    def _tell(self, outcome: Outcome, metrics: Metrics) -> None:
        self.console.print(comparison_table(outcome.comparison, outcome.stopped, metrics))
        if text := learned_text(outcome.comparison.best):
            self.console.print(f"learned: {text}", markup=False)
        for name, reason in outcome.stopped.items():
            how = reason if reason == "not started" else f"stopped ({reason})"
            self.console.print(f"note: {name} was {how}; continue with --resume")
        if note := outcome.shortfalls:
            self._say(f"note: {note}")
        self._say(f"model: {self.folder.model}")

    def _write_report(self, comparison: Comparison) -> None:
        """The report comes last: if it fails, the model must not be lost."""
        folder, model, command = self.folder, comparison.best_estimator, self.about.get("command")
        X, y, seed, picture = self.data.X, self.data.targets, self.plan.seed, None
        try:
            folder.check_ours(folder.report)
            path = write_report(
                folder.report,
                model,
                X,
                y,
                X_test=None if self.test is None else self.test.X,
                y_test=None if self.test is None else self.test.y,
                comparison=comparison if len(comparison.candidates) > 1 else None,
                command=command,
                seed=seed,
            )
            if layout_of(model).image_shape is not None:
                picture = write_picture(folder.picture, comparison, X, y, seed)
        except Exception as error:
            self.console.print(
                f"note: the report could not be written ({sentence(error)}); the model is saved, and "
                f"orbitwise report {folder.path} tries again",
                markup=False,
            )
            return
        if picture is not None:
            self._say(f"picture: {picture}")
        self._say(f"report: {path}")

    def _summary(self, learner: Learner, outcome: Outcome, metrics: Metrics) -> dict[str, object]:
        comparison = outcome.comparison
        return {
            "format": FORMAT,
            "best": comparison.best.name,
            "digest": digest_of(learner.settings),
            "model": file_digest(self.folder.model),
            "examples": file_digest(self.folder.examples),
            "finished": not outcome.stopped,
            "tied": list(comparison.tied),
            "undecided": list(comparison.undecided),
            "verdict": comparison.verdict,
            "num_nodes": comparison.num_nodes,
            "candidates": [
                {
                    **{name: getattr(each, name) for name in KEPT},
                    "file": learner.file(each.name).name,
                    "evidences_on_common_nodes": list(each.evidences),
                    "gain_from_half_the_nodes": each.gain,
                    "learned": {name: list(interval) for name, interval in each.learned.items()},
                    "sha256": file_digest(learner.file(each.name)),
                    "stopped": outcome.stopped.get(each.name),
                    "test": dict(metrics.get(each.name, {})),
                }
                for each in comparison.candidates
            ],
        }


def _set_aside(file: Path) -> Path:
    """Give a file that may be somebody's a name of its own."""
    names = (file.with_suffix(f".foreign{number or ''}") for number in itertools.count())
    aside = next(each for each in names if not os.path.lexists(each))
    os.replace(file, aside)
    return aside


def _digest(data: Data) -> str:
    """Of all that is learned from: inputs and targets, and how they are to be read."""
    digest = hashlib.sha256(f"{data.X.dtype} {data.X.shape}".encode())
    digest.update(np.ascontiguousarray(data.X).tobytes())
    y = np.zeros(0) if data.y is None else data.y
    kinds = None if data.kinds is None else np.asarray(data.kinds).tolist()
    columns = None if data.columns is None else list(data.columns)
    shape = None if data.shape is None else list(data.shape)
    parts = [y.dtype.kind, y.shape, y.tolist(), columns, shape, data.is_image, kinds]
    digest.update(json.dumps(parts, default=str).encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Of what results depend on."""
    from orbitwise import __version__

    return {"orbitwise": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
