"""What every estimator promises: scikit-learn's own checks."""

import os
import subprocess
import sys
from pathlib import Path

import orbitwise

CHECK = """
from sklearn.utils.estimator_checks import check_estimator
from orbitwise import {name}
results = check_estimator({name}({arguments}), on_skip=None)
assert len(results) > 50, len(results)
"""


def assert_follows_scikit_learn(name: str, arguments: str = "") -> None:
    # A process of its own: there, as for users, the types of arguments are not checked before fit sees them.
    path = str(Path(orbitwise.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHECK.format(name=name, arguments=arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
