"""What every estimator promises: scikit-learn's own checks."""

import warnings

from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import check_estimator

from tests.contracts.annotations import unchecked


def assert_follows_scikit_learn(estimator: BaseEstimator) -> None:
    """All of scikit-learn's checks pass; as for users, types are not checked before `fit` sees them."""
    with unchecked(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits are cut short
        results = check_estimator(estimator, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 50
