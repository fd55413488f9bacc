"""The folder of results: when it may be written to, and what is taken away."""

import pytest

from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import Folder, check_new, model_file

SETTINGS = {"seed": 0, "names": ("a", "b")}


def test_a_new_folder_is_made_and_an_old_one_goes_on(tmp_path):
    folder = Folder(tmp_path / "deep" / "new")
    assert not folder.prepare(SETTINGS, resume=True, force=False)
    (folder.path / "candidates" / f".{'0' * 16}.tmp").write_text("torn")
    (folder.path / ".mine.tmp").write_text("mine")
    assert folder.prepare({**SETTINGS, "command": "other"}, resume=True, force=False)
    assert [each.name for each in folder.path.rglob("*.tmp")] == [".mine.tmp"]
    with pytest.raises(CommandError, match="seed was 0 and is 1 now"):
        folder.prepare({**SETTINGS, "seed": 1}, resume=True, force=False)
    with pytest.raises(CommandError, match="--resume, replace its results with --force"):
        folder.prepare(SETTINGS, resume=False, force=False)


def test_force_replaces_our_files_only(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(CommandError, match="not empty"):
        folder.prepare(SETTINGS, resume=False, force=False)
    assert not folder.prepare(SETTINGS, resume=True, force=False)  # nothing of ours is there
    folder.model.write_text("old")
    assert not folder.prepare(SETTINGS, resume=False, force=True)
    assert not folder.model.exists()
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_results_without_settings_are_not_overwritten(tmp_path):
    (tmp_path / "model.orbitwise").write_text("a model of somebody")
    with pytest.raises(CommandError, match="not empty"):
        Folder(tmp_path).prepare(SETTINGS, resume=True, force=False)


def test_a_folder_killed_before_its_settings_were_written_can_be_resumed(tmp_path):
    (tmp_path / f".{'a' * 16}.tmp").write_text("torn")
    assert not Folder(tmp_path).prepare(SETTINGS, resume=True, force=False)
    assert not list(tmp_path.rglob("*.tmp"))


def test_models_are_found_in_folders(tmp_path):
    with pytest.raises(CommandError, match="no model at"):
        model_file(tmp_path)
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(CommandError, match="--resume"):
        model_file(tmp_path)
    (tmp_path / "model.orbitwise").write_text("model")
    assert model_file(tmp_path) == model_file(tmp_path / "model.orbitwise")


def test_files_are_new_or_forced(tmp_path):
    check_new(tmp_path / "a.csv", force=False)
    (tmp_path / "a.csv").write_text("mine")
    check_new(tmp_path / "a.csv", force=True)
    for file, says in (
        (tmp_path / "a.csv", "--force"),
        (tmp_path, "is a folder"),
        (tmp_path / "b" / "c", "no folder"),
    ):
        with pytest.raises(CommandError, match=says):
            check_new(file, force=False)


def test_a_damaged_file_says_so(tmp_path):
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(CommandError, match="damaged"):
        Folder(tmp_path).prepare(SETTINGS, resume=True, force=False)
