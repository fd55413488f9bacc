"""Write the golden files again, from the code as it is now.

    python -m tests.goldens.make numbers models transcripts

Name only what changed on purpose, and give the reason in CHANGELOG.md. `models` overwrites files that stand
for the format in which users stored models: write new ones only beside them, under new names.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbitwise
from tests.goldens import transcripts
from tests.goldens.cases import CASES, MODEL_FILES, observed, stored_case

HERE = Path(__file__).parent


def write_json(name: str, content: Any) -> None:
    """Write one entry per line, so that changes can be read."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in content.items()]
    (HERE / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def write_numbers() -> None:
    """Evidence and predictions of every case."""
    write_json("numbers.json", {name: observed(case.fitted(), case.new) for name, case in CASES.items()})


def write_models() -> None:
    """Model files, and what they predict."""
    (HERE / "models").mkdir(exist_ok=True)
    found = {}
    for name in MODEL_FILES:
        case = stored_case(name)
        model = case.fitted()
        orbitwise.save(model, HERE / "models" / f"{name}.orbitwise")
        found[name] = observed(model, case.new)
    write_json("models.json", found)


def write_transcripts() -> None:
    """What the command prints and writes."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        steps = transcripts.record(Path(folder))
        write_json("transcripts.json", {"steps": steps, "contents": transcripts.contents(Path(folder))})


WRITERS: dict[str, Callable[[], None]] = {
    "numbers": write_numbers,
    "models": write_models,
    "transcripts": write_transcripts,
}

if __name__ == "__main__":
    for each in sys.argv[1:]:
        WRITERS[each]()
