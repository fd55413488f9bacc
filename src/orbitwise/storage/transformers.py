"""How files hold fitted transformers of scikit-learn: columns, codes of words, fills and scales.

Each is rebuilt by fitting a new one, of the installed version, to a few rows made from what the file holds.
So a file chooses numbers and words, never attributes of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
)

from orbitwise.declarations import COUNT, Field, Stored, require
from orbitwise.estimators.dates import DecimalYears

Cells = NDArray[np.object_]
Step = BaseEstimator | str
RECORD_ARRAY = Field((np.ndarray,), is_record=True)
CATEGORIES = Field((list,), RECORD_ARRAY)
VALUE = Field((str, int, float, type(None)), is_record=True)
NUMBERS = Field((np.ndarray, int, float), is_record=True)
A_DATE = np.datetime64("2000-01-01", "us")
KEPT, LEFT_OUT, REST = "passthrough", "drop", "remainder"


def example(step: Step, width: int) -> list[object]:
    """One row of `width` cells that a fitted transformer accepts."""
    if isinstance(step, Pipeline):
        # what fills gaps takes words and numbers alike; what comes after it may not
        parts = [part for _, part in step.steps if not isinstance(part, SimpleImputer)] or [KEPT]
        return example(parts[0], width)
    if isinstance(step, OneHotEncoder | OrdinalEncoder):
        return [next((each for each in known if each == each and each is not None), known[0])
                for known in step.categories_]  # fmt: skip
    if isinstance(step, DecimalYears):
        return [A_DATE] * width
    return [0.0] * width


def columns(
    steps: Sequence[tuple[str, object]],
    places: Sequence[Sequence[int]],
    width: int,
    names: np.ndarray | None,
    sparse_output: bool,
    verbose_names: bool,
    output: str | None,
) -> ColumnTransformer:
    """A ColumnTransformer of fitted transformers, each with the places of its columns."""
    require(len(steps) == len(places) and width > 0, "transformers without columns")
    row: Cells = np.zeros((1, width), dtype=object)
    for (_, step), own in zip(steps, places, strict=True):
        require(all(0 <= place < width for place in own), "transformers of columns that are not there")
        known = step if isinstance(step, str) else _checked(step)
        if known != LEFT_OUT and own:
            for place, cell in zip(own, example(known, len(own)), strict=True):
                row[0, place] = cell
    ready = [
        (name, step if isinstance(step, str) else FrozenEstimator(_checked(step)), list(own))
        for (name, step), own in zip(steps, places, strict=True)
    ]
    # what is done with all other columns comes last, under a name of its own
    rest = ready.pop()[1] if ready and ready[-1][0] == REST else LEFT_OUT
    built = ColumnTransformer(ready, remainder=cast(Any, rest), verbose_feature_names_out=verbose_names)
    with _nameless():
        built.fit(row)
    vars(built).update(
        # places, because only data frames have columns by name
        transformers_=[(name, _thawed(step), own) for name, step, own in built.transformers_],
        transformers=[(name, _thawed(step), _named(own, names)) for name, step, own in ready],
        remainder=_thawed(rest),
        sparse_output_=sparse_output,
    )
    return cast(ColumnTransformer, _dressed(built, names, output))


def _thawed(step: object) -> object:
    """The transformer in a frozen one."""
    return step.estimator if isinstance(step, FrozenEstimator) else step


@contextmanager
def _nameless() -> Iterator[None]:
    """No warning where an example has no names of columns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names", category=UserWarning)
        yield


def _named(places: Sequence[int], names: np.ndarray | None) -> list[int] | list[str]:
    """The names of columns, where they have any, or else their places."""
    return list(places) if names is None else [str(names[place]) for place in places]


def pipeline(steps: Sequence[tuple[str, object]]) -> Pipeline:
    """A Pipeline of fitted transformers."""
    require(len(steps) > 0, "a pipeline without steps")
    return Pipeline([(name, step if isinstance(step, str) else _checked(step)) for name, step in steps])


def one_hot_encoder(
    categories: list[np.ndarray],
    drop: str | np.ndarray | None,
    is_sparse: bool,
    handle_unknown: str,
    names: np.ndarray | None,
    output: str | None,
) -> OneHotEncoder:
    """A OneHotEncoder that knows these categories."""
    made = partial(OneHotEncoder, drop=cast(Any, drop), sparse_output=is_sparse)
    return cast(OneHotEncoder, _encoder(made, categories, handle_unknown, names, output))


def ordinal_encoder(
    categories: list[np.ndarray],
    handle_unknown: str,
    unknown_value: int | float | None,
    encoded_missing_value: int | float,
    names: np.ndarray | None,
    output: str | None,
) -> OrdinalEncoder:
    """An OrdinalEncoder that knows these categories."""
    made = partial(
        OrdinalEncoder, unknown_value=cast(Any, unknown_value), encoded_missing_value=encoded_missing_value
    )
    return cast(OrdinalEncoder, _encoder(made, categories, handle_unknown, names, output))


def _encoder(
    made: Callable[..., OneHotEncoder | OrdinalEncoder],
    categories: list[np.ndarray],
    handle_unknown: str,
    names: np.ndarray | None,
    output: str | None,
) -> TransformerMixin:
    require(bool(categories) and all(each.ndim == 1 and len(each) for each in categories), "no categories")
    cells: Cells = np.empty((max(map(len, categories)), len(categories)), dtype=object)
    for place, known in enumerate(categories):
        cells[:, place] = known[0]
        cells[: len(known), place] = known
    built = made(categories=[each.astype(object) for each in categories], handle_unknown=handle_unknown)
    built.fit(cells)
    built.categories_ = categories
    built.set_params(categories="auto")
    return _dressed(built, names, output)


def imputer(
    strategy: str,
    statistics: np.ndarray,
    missing_values: str | int | float | None,
    fill_value: str | int | float | None,
    missing_columns: np.ndarray | None,
    keep_empty_features: bool,
    names: np.ndarray | None,
    output: str | None,
) -> SimpleImputer:
    """A SimpleImputer that fills gaps with these statistics."""
    width = len(statistics)
    gaps: list[int] = [] if missing_columns is None else missing_columns.tolist()
    require(width > 0 and all(0 <= gap < width for gap in gaps), "gaps in columns that are not there")
    cells = np.array([statistics, statistics], dtype=statistics.dtype)
    # columns without any value have NaN for it
    cells[:, [place for place, each in enumerate(statistics) if each != each]] = missing_values
    cells[1, gaps] = missing_values
    built = SimpleImputer(
        missing_values=cast(Any, missing_values),
        strategy=strategy,
        fill_value=fill_value,
        add_indicator=missing_columns is not None,
        keep_empty_features=keep_empty_features,
    ).fit(cells)
    built.statistics_ = statistics
    return cast(SimpleImputer, _dressed(built, names, output))


def standard_scaler(
    mean: np.ndarray | None,
    variance: np.ndarray | None,
    scale: np.ndarray | None,
    width: int,
    num_samples: np.ndarray | int | float,
    with_mean: bool,
    with_std: bool,
    names: np.ndarray | None,
    output: str | None,
) -> StandardScaler:
    """A StandardScaler with these means and scales."""
    for each in (mean, variance, scale):
        require(
            each is None or (each.shape == (width,) and each.dtype == np.float64), "scales of other columns"
        )
    require((mean is not None or not with_mean) and (scale is not None or not with_std), "no scales")
    built = StandardScaler(with_mean=with_mean, with_std=with_std).fit(np.zeros((1, width)))
    built.mean_, built.var_, built.scale_ = mean, variance, scale
    built.n_samples_seen_ = num_samples
    return cast(StandardScaler, _dressed(built, names, output))


def min_max_scaler(
    smallest: np.ndarray,
    largest: np.ndarray,
    feature_range: tuple[int | float, ...],
    clip: bool,
    num_samples: int,
    names: np.ndarray | None,
    output: str | None,
) -> MinMaxScaler:
    """A MinMaxScaler of columns with these extremes."""
    require(smallest.shape == largest.shape and smallest.ndim == 1, "extremes of other columns")
    built = MinMaxScaler(cast(Any, feature_range), clip=clip).fit(np.stack([smallest, largest]))
    built.n_samples_seen_ = num_samples
    return cast(MinMaxScaler, _dressed(built, names, output))


def decimal_years(width: int, names: np.ndarray | None, output: str | None) -> DecimalYears:
    """DecimalYears of so many columns."""
    require(width > 0, "dates in no columns")
    row: Cells = np.full((1, width), A_DATE, dtype=object)
    return cast(DecimalYears, _dressed(DecimalYears().fit(row), names, output))


def _checked(step: object) -> BaseEstimator:
    if not isinstance(step, tuple(TRANSFORMERS)):
        raise ValueError(f"a {type(step).__name__} among transformers")
    return cast(BaseEstimator, step)


def _dressed(built: TransformerMixin, names: NDArray[Any] | None, output: str | None) -> TransformerMixin:
    """The transformer with the names of its columns, and with the kind of its output."""
    if names is not None:
        require(names.shape == (vars(built)["n_features_in_"],), "names of other columns")
        require(all(isinstance(each, str) for each in names), "names of columns that are no text")
        vars(built)["feature_names_in_"] = names.astype(object)
    return built if output is None else built.set_output(transform=cast(Any, output))


def _names_of(step: object) -> object:
    return getattr(step, "feature_names_in_", None)


def _output_of(step: object) -> object:
    return getattr(step, "_sklearn_output_config", {}).get("transform")


def _steps_of(built: ColumnTransformer) -> list[tuple[str, object]]:
    """The fitted transformers of columns; those of no columns are left out."""
    return [
        (name, KEPT if isinstance(step, FunctionTransformer) and step.func is None else step)
        for name, step, _ in built.transformers_
        if built._transformer_to_input_indices[name]
    ]


def _places_of(built: ColumnTransformer) -> list[list[int]]:
    found = built._transformer_to_input_indices
    return [[int(place) for place in found[name]] for name, _, _ in built.transformers_ if found[name]]


def _refuse_columns(built: ColumnTransformer) -> str | None:
    if built.transformer_weights is not None:
        return "a ColumnTransformer with transformer_weights cannot be stored; use one without."
    alone = [name for name, _, place in built.transformers if isinstance(place, str | int)]
    if alone:
        return (
            f"the transformer {alone[0]!r} of a ColumnTransformer takes its column as a vector, which cannot "
            "be stored: give the columns as a list."
        )
    return None


def _refuse_encoder(encoder: OneHotEncoder | OrdinalEncoder) -> str | None:
    if encoder.min_frequency is not None or encoder.max_categories is not None:
        return (
            "an encoder that groups rare categories cannot be stored; use one without min_frequency and "
            "max_categories."
        )
    if encoder.dtype is not np.float64:
        return f"an encoder to {np.dtype(cast(Any, encoder.dtype))} cannot be stored; use the usual float64."
    is_custom = isinstance(encoder, OneHotEncoder) and encoder.feature_name_combiner != "concat"
    return "an encoder with a feature_name_combiner cannot be stored; use one without." if is_custom else None


def _indicated(built: SimpleImputer) -> object:
    return None if built.indicator_ is None else built.indicator_.features_


DRESS = {"names": Field(read=_names_of), "output": Field(read=_output_of)}
WIDTH = Field((int,), least=1, read="n_features_in_")
ENCODER = {"categories": Field(CATEGORIES.kinds, CATEGORIES.each, read="categories_"), **DRESS}
TRANSFORMERS: dict[type, Stored] = {
    ColumnTransformer: Stored(
        {
            "steps": Field((list,), Field((tuple,), Field((object,))), read=_steps_of),
            "places": Field((list,), Field((list,), Field((int,), least=0)), read=_places_of),
            "width": WIDTH,
            "sparse_output": Field(read="sparse_output_"),
            "verbose_names": Field(read="verbose_feature_names_out"),
            **DRESS,
        },
        build=columns,
        refuse=_refuse_columns,
    ),
    Pipeline: Stored({"steps": Field((list,), Field((tuple, list), Field((object,))))}, build=pipeline),
    OneHotEncoder: Stored(
        {"is_sparse": Field(read="sparse_output"), **ENCODER}, build=one_hot_encoder, refuse=_refuse_encoder
    ),
    OrdinalEncoder: Stored(
        {"unknown_value": VALUE, "encoded_missing_value": VALUE, **ENCODER},
        build=ordinal_encoder,
        refuse=_refuse_encoder,
    ),
    SimpleImputer: Stored(
        {
            "statistics": Field((np.ndarray,), is_record=True, read="statistics_"),
            "missing_values": VALUE,
            "fill_value": VALUE,
            "missing_columns": Field(read=_indicated),
            **DRESS,
        },
        build=imputer,
    ),
    StandardScaler: Stored(
        {
            "mean": Field(read="mean_"),
            "variance": Field(read="var_"),
            "scale": Field(read="scale_"),
            "width": WIDTH,
            "num_samples": Field(NUMBERS.kinds, is_record=True, read="n_samples_seen_"),
            **DRESS,
        },
        build=standard_scaler,
    ),
    MinMaxScaler: Stored(
        {
            "smallest": Field(read="data_min_"),
            "largest": Field(read="data_max_"),
            "num_samples": Field(COUNT.kinds or (int,), least=0, most=COUNT.most, read="n_samples_seen_"),
            **DRESS,
        },
        build=min_max_scaler,
    ),
    DecimalYears: Stored({"width": WIDTH, **DRESS}, build=decimal_years),
}
"""Transformers that a file may hold, alone or inside a Pipeline or a ColumnTransformer."""


def check_width(steps: Pipeline, width: int) -> None:
    """Raise a ValueError unless the transformers of a pipeline make rows of `width` numbers."""
    first = steps.steps[0][1]
    row: Cells = np.zeros((1, int(getattr(first, "n_features_in_", width))), dtype=object)
    if isinstance(first, ColumnTransformer):
        for (_, step), places in zip(_steps_of(first), _places_of(first), strict=True):
            if step != LEFT_OUT:
                row[0, places] = example(cast(Step, step), len(places))
    else:
        row[0] = example(steps, row.shape[1])
    with _nameless():
        found = np.asarray(steps.transform(row), dtype=np.float64)
    require(found.shape == (1, width), "transformers that make other rows than the estimator takes")
