"""Pipelines of scikit-learn that end with an estimator of this package, in files."""

from __future__ import annotations

from typing import Any

from sklearn.pipeline import Pipeline

from orbitwise.storage.container import brief, damaged
from orbitwise.storage.objects import Writer
from orbitwise.storage.transformers import check_width, pipeline


def estimator_in(model: Any) -> Any:
    """The last step of a pipeline, or the model itself if it is none."""
    return model.steps[-1][1] if isinstance(model, Pipeline) else model


def steps_of(model: object, writer: Writer) -> object:
    """The steps of a pipeline, of the estimator only its name; None for what is no pipeline."""
    if not isinstance(model, Pipeline):
        return None
    return writer.value([*model.steps[:-1], (model.steps[-1][0], None)], "model.steps")


def pipeline_of(steps: object, model: Any) -> Pipeline:
    """The pipeline of a file around its estimator."""
    is_list = isinstance(steps, list) and all(isinstance(each, tuple) and len(each) == 2 for each in steps)
    if not is_list or not isinstance(steps, list) or not all(isinstance(name, str) for name, _ in steps):
        raise damaged("its pipeline makes no sense")
    *before, (name, _) = steps
    try:
        if before:
            check_width(pipeline(before), model.n_features_in_)
        return Pipeline([*before, (name, model)])
    except ValueError as error:
        raise damaged(f"its pipeline makes no sense ({brief(error)})") from error
