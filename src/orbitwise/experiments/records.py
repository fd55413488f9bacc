"""Records of experiments: written whole or not at all, so that a run that was killed can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orbitwise.storage.atomic import write_atomically


def write_record(record: Any, out: Path) -> None:
    """Write a record as JSON, in a folder that is made where it is missing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps(record, indent=1) + "\n")
