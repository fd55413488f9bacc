"""One fit of an estimator whose invariances are not compared: a kernel machine, or a search for a kernel."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, final

import numpy as np
from rich.console import Console

from orbitwise.cli.data import Data, checked_targets, checked_test_targets
from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import FORMAT, Folder, digest_of, file_digest
from orbitwise.cli.learning import Plan, versions
from orbitwise.cli.models import measure
from orbitwise.estimators.validation import check_settings
from orbitwise.storage.models import packed

MEASURES = {"error": "test error", "log_loss": "log loss", "rmse": "test RMSE", "log_density": "log density"}


@final
class SingleRun:
    """One `orbitwise learn` of one estimator: it is fitted, saved and measured.

    Whatever a fit would refuse of its settings is refused when a run is made, before --force replaces any
    results.
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
        if len(plan.names) > 1:
            raise CommandError(
                f"--estimator {plan.choice} takes one --invariance, not {', '.join(plan.names)}: several are "
                "compared by their evidence, with --estimator gp or sparse"
            )
        self.plan, self.folder, self.console, self.about = plan, folder, console, about
        self.data = replace(data, y=checked_targets(data.targets, plan.task, data.target))
        self.test = test
        if test is not None:
            self.test = replace(test, y=checked_test_targets(test, self.data.targets, plan.task))
        self.model = self._estimator()
        check_settings(self.model)

    def _estimator(self) -> Any:
        if self.plan.names and "invariance" not in inspect.signature(self.plan.kind).parameters:
            raise CommandError(
                f"--estimator {self.plan.choice} takes no --invariance: its kind of smoothness is fixed, or "
                "searched for; leave it out"
            )
        name, *_ = [*self.plan.names, None]
        return self.plan.estimator(self.data, None if name is None else self.plan.invariance(name, self.data))

    def learn(self, resume: bool = False, force: bool = False) -> Any:
        """Learn, save, measure, and say what was found; an interrupted run leaves no model."""
        if resume:
            raise CommandError(
                f"--estimator {self.plan.choice} keeps no progress to resume from: learn again with --force"
            )
        with self.folder.writing():
            settings = {**self.about, **self.plan.settings(self.data), "versions": versions()}
            self.folder.prepare(settings, False, force)
            for note in (*self.data.notes, *(() if self.test is None else self.test.notes)):
                self._say(f"note: {note}")
            self._fit()
            self.folder.write_bytes(self.folder.model, packed(self.data.piped(self.model)))
            metrics = {} if self.test is None else measure(self.model, self.test.X, self.test.targets)
            self.folder.write(self.folder.comparison, self._summary(settings, metrics))
        self._tell(metrics)
        return self.model

    def _fit(self) -> None:
        showing = self.console.status("learning") if self.console.is_terminal else nullcontext()
        with showing, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.model.fit(self.data.X, self.data.y)
        if self.data.columns is not None:
            vars(self.model)["feature_names_in_"] = np.array(self.data.columns, dtype=object)
        for each in caught:
            self._say(f"note: {each.message}")

    def _summary(self, settings: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, object]:
        return {
            "format": FORMAT,
            "best": self.plan.names[0] if self.plan.names else "",
            "digest": digest_of(settings),
            "model": file_digest(self.folder.model),
            "examples": None,
            "finished": True,
            "candidates": [],
            "test": dict(metrics),
        }

    def _tell(self, metrics: Mapping[str, float]) -> None:
        self._say(f"{type(self.model).__name__} learned from {len(self.data):,} rows")
        if hasattr(self.model, "summary"):
            self._say(self.model.summary())
        if metrics:
            numbers = (
                f"{MEASURES[name]} {value:.2%}" if name == "error" else f"{MEASURES[name]} {value:.4g}"
                for name, value in metrics.items()
            )
            self._say(", ".join(numbers))
        self._say(f"model: {self.folder.model}")
        self._say("no report: there are reports of --estimator gp and sparse only")

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)
