"""What a searched regressor remembers: the fit of a regressor, and what the search found and tried."""

from __future__ import annotations

from types import NoneType

import numpy as np
from gpytorch.kernels import Kernel

from orbitwise.estimators.regression_model import RegressionModel
from orbitwise.functionals.functional import Functional
from orbitwise.inference.posterior import Posterior
from orbitwise.storage.posteriors import NUMBERS, POSITIVE_NUMBERS
from orbitwise.storage.recipes import RECORD, Field

TEXT = Field(str)

FITTED = {
    "_claims": Field(list, each=(tuple, list)),
    "_extents": Field(np.ndarray),
    "_is_vector": Field(bool),
    "_model": Field(RegressionModel),
    "_scale": POSITIVE_NUMBERS,
    "_shares": Field(list, each=(int, float), is_record=True),
    "_shift": NUMBERS,
    "converged_": Field(bool),
    "dates_": Field(bool),
    "evidence_kind_": TEXT,
    "functional_": Field(Functional),
    "history_": Field(list, each=dict),
    "inference_": TEXT,
    "invariance_": Field((str, NoneType)),
    "kernel_": Field(Kernel),
    "log_evidence_": RECORD,
    "log_evidence_error_": RECORD,
    "n_features_in_": Field(int, least=1),
    "noise_": Field((int, float), least=0),
    "posterior_": Field(Posterior),
    "score_": RECORD,
    "search_rows_": Field(int, least=0, most=2**53),
    "spelling_": TEXT,
}
OPTIONAL = {"feature_names_in_": Field(np.ndarray), "stopped_": TEXT}
