"""What a searched regressor remembers: the fit of a regressor, and what the search found and tried."""

from __future__ import annotations

from types import NoneType

import numpy as np
from gpytorch.kernels import Kernel
from torch import Tensor

from orbitwise.estimators.regression_model import RegressionModel
from orbitwise.functionals.functional import Functional
from orbitwise.inference.posterior import Posterior
from orbitwise.storage.recipes import Field

NUMBER = Field((int, float))
TEXT = Field(str)

FITTED = {
    "_claims": Field(list, each=(tuple, list)),
    "_extents": Field(np.ndarray),
    "_is_vector": Field(bool),
    "_model": Field(RegressionModel),
    "_scale": Field(Tensor),
    "_shares": Field(list, each=(int, float)),
    "_shift": Field(Tensor),
    "converged_": Field(bool),
    "dates_": Field(bool),
    "evidence_kind_": TEXT,
    "functional_": Field(Functional),
    "history_": Field(list, each=dict),
    "inference_": TEXT,
    "invariance_": Field((str, NoneType)),
    "kernel_": Field(Kernel),
    "log_evidence_": NUMBER,
    "log_evidence_error_": NUMBER,
    "n_features_in_": Field(int),
    "noise_": NUMBER,
    "posterior_": Field(Posterior),
    "score_": NUMBER,
    "search_rows_": Field(int),
    "spelling_": TEXT,
}
OPTIONAL = {"feature_names_in_": Field(np.ndarray), "stopped_": TEXT}
