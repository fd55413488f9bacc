"""The command keeps its options, exit codes, columns, files and headings."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.goldens import transcripts

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "transcripts.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, list[str]]]:
    folder = tmp_path_factory.mktemp("command")
    return transcripts.record(folder), transcripts.contents(folder)


@pytest.mark.parametrize("name", transcripts.STEPS)
def test_a_step_ends_as_before(ran, name: str):
    found, expected = ran[0][name], GOLDEN["steps"][name]
    assert found["status"] == expected["status"], found["text"]
    assert found["error"] == expected["error"]
    assert found["columns"] == expected["columns"]
    assert set(found["options"]) >= set(expected["options"])
    assert set(found["written"]) >= set(expected["written"])


def test_files_have_the_same_columns_keys_and_headings(ran):
    for name, expected in GOLDEN["contents"].items():
        if name.endswith(".json"):
            assert set(ran[1][name]) >= set(expected), name
        else:
            assert ran[1][name] == expected, name


def test_numbers_and_folders_are_masked():
    assert transcripts.masked("12.5 s in /a/b/c.csv  \n", Path("/a/b")) == "N s in FOLDER/c.csv"
