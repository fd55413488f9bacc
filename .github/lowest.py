"""Prints the lowest versions that pyproject.toml allows, as constraints for pip."""

import re
import tomllib
from pathlib import Path

pyproject = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
extras = pyproject["project"]["optional-dependencies"]
for requirement in pyproject["project"]["dependencies"] + extras["test"]:
    found = re.match(r"([\w-]+)(?:\[[^\]]*\])?>=([\w.]+)", requirement)
    if found:
        print(f"{found[1]}=={found[2]}")
