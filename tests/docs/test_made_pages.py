"""The reference lists every public name and nothing private; the command's page lists all of its options."""

import importlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.main import get_command

import orbitwise
from orbitwise.cli.app import app
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("made_pages", DOCS / "made_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def written(made, tmp_path_factory) -> Path:
    """The folder with all pages; the documents that are copied stand beside it, as in the repository."""
    root = tmp_path_factory.mktemp("repository")
    for original in made.COPIED.values():
        (root / original).parent.mkdir(exist_ok=True)
        (root / original).write_bytes((ROOT / original).read_bytes())
    (root / "docs").mkdir()
    made.write_pages(root / "docs")
    return root / "docs"


def listed(page: Path) -> set[str]:
    """The names in the tables and descriptions of a page."""
    text = page.read_text(encoding="utf-8")
    tables = re.findall(r"^\.\. autosummary::\n(?:   :.*\n)*\n((?:   \w+\n)+)", text, flags=re.M)
    data = re.findall(r"^\.\. autodata:: (\w+)", text, flags=re.M)
    return {name for table in tables for name in table.split()} | set(data)


def test_every_name_of_the_package_is_listed(made, written):
    names = {name for name in orbitwise.__all__ if not isinstance(getattr(orbitwise, name), ModuleType)}
    assert listed(written / "reference" / "index.rst") == names


def test_every_public_name_of_every_folder_is_listed_once(made, written):
    at_the_top = [getattr(orbitwise, name) for names in made.AT_THE_TOP.values() for name in names]
    for name in made.FOLDERS:
        module = importlib.import_module(f"orbitwise.{name}")
        public = set(made.public_names(module))
        assert public
        wanted = {each for each in public if not any(getattr(module, each) is top for top in at_the_top)}
        found = listed(written / "reference" / f"{name.replace('.', '_')}_module.rst")
        assert found == wanted
        assert not any(each.startswith("_") for each in found)


def test_the_command_is_described_as_its_help_does(written):
    text = (written / "reference" / "command.rst").read_text(encoding="utf-8")
    commands = vars(get_command(app))["commands"]
    assert {"learn", "predict", "export"} <= set(commands)
    for name, command in commands.items():
        assert f"\norbitwise {name}\n---" in text
        for parameter in command.params:
            if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False):
                assert parameter.opts[-1] in text


def test_records_of_results_are_told_beside_what_is_printed(made, tmp_path):
    records = tmp_path / "results" / "reproduction" / "cpu"
    records.mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    claims = [
        {
            "says": "A is B",
            "printed": "1",
            "measured": "a|b 2",
            "verdict": "differs",
            "because": "it is late",
        },
        {"says": "C is D", "printed": "3", "measured": "4", "verdict": "holds", "because": ""},
    ]
    record = {
        "command": "orbitwise reproduce lim-fig2",
        "seeds": 10,
        "seconds": 90.0,
        "data": {},
        "cells": {"one": {"device": "cpu", "processor_seconds": 90.0}},
        "claims": claims,
    }
    (records / "lim-fig2.json").write_text(json.dumps(record), encoding="utf-8")
    del record["claims"]  # not finished
    (records / "lim-fig3.json").write_text(json.dumps(record), encoding="utf-8")
    text = made.reproduction_page(tmp_path / "docs")
    assert "| [lim-fig2](#lim-fig2) | LIM, figure 2 (section 3.2) | cpu | 1 differs, 1 holds |" in text
    assert "| A is B | 1 | a\\|b 2 | **differs**: it is late |" in text
    assert "| C is D | 3 | 4 | **holds** |" in text
    assert "Scale cpu: 10 seeds, data: made, 1.5 min of one core." in text
    assert "](cpu-lim-fig2.png)" in text
    assert "| [lim-fig3](#lim-fig3) | LIM, figure 3 (section 5.1) |  | no record |" in text
    assert "`orbitwise reproduce lim-fig3` takes about" in text


def test_links_of_copied_documents_work_from_their_place(made, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "method.md").write_text("# Method\n", encoding="utf-8")
    links = "[a](docs/method.md), [b](LICENSE), [c](https://example.org), [d](docs/none.md)\n"
    (tmp_path / "X.md").write_text(links, encoding="utf-8")
    assert (
        made.copied_page(tmp_path / "docs", "X.md") == "[a](../method.md), b, [c](https://example.org), d\n"
    )
