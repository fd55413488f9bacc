"""The folder of results: when it may be written to and by whom, and what is taken away."""

import errno
import json
import os

import pytest

from orbitwise.cli.errors import CommandError
from orbitwise.cli.folders import FORMAT, Folder, check_new, digest_of, file_digest, is_earlier, model_file

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
    (tmp_path / "link.csv").symlink_to("none.csv")
    for file, says in (
        (tmp_path / "a.csv", "--force"),
        (tmp_path / "link.csv", "--force"),
        (tmp_path, "is a folder"),
        (tmp_path / "b" / "c", "is not a folder"),
    ):
        with pytest.raises(CommandError, match=says):
            check_new(file, force=False)


def test_a_damaged_file_says_so(tmp_path):
    for text in (b"{", b"[]", b"\xff", b"[" * 100_000, b"1" * 5000, b"null"):
        (tmp_path / "settings.json").write_bytes(text)
        with pytest.raises(CommandError, match="damaged"):
            Folder(tmp_path).prepare(SETTINGS, resume=True, force=False)


def test_one_process_writes_at_a_time(tmp_path):
    folder = Folder(tmp_path / "run")
    with folder.writing():
        folder.prepare(SETTINGS, resume=False, force=False)
        same = Folder(tmp_path / "also")
        same.path.symlink_to("run")
        says = f"process {os.getpid()} on .* is writing to .*also; wait"
        with pytest.raises(CommandError, match=says), same.writing():
            pytest.fail("it is taken")
    names = {each.name for each in folder.path.iterdir()}
    assert names == {"settings.json", "candidates", "progress"}
    with same.writing():  # nobody writes any more
        assert same.prepare(SETTINGS, resume=True, force=False)


def test_what_a_killed_process_leaves_is_no_lock(tmp_path):
    folder = Folder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / ".orbitwise.lock").write_text("process 1 on a machine that is no more")
    with folder.writing():
        assert not folder.prepare(SETTINGS, resume=False, force=False)
    assert not (folder.path / ".orbitwise.lock").exists()


def test_a_folder_that_was_taken_away_gets_nothing_more(tmp_path):
    folder = Folder(tmp_path / "run")
    with folder.writing():
        folder.prepare(SETTINGS, resume=False, force=False)
        folder.path.rename(tmp_path / "old")
        other = Folder(tmp_path / "run")
        with other.writing():
            other.prepare({"seed": 1}, resume=False, force=False)
            with pytest.raises(CommandError, match="deleted or replaced during this run, so the run stopped"):
                folder.write(folder.comparison, {})
            folder.sweep()
    assert not other.comparison.exists()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    def unsupported(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(pytest.importorskip("fcntl"), "flock", unsupported)
    with pytest.warns(UserWarning, match="has no locks: make sure"), Folder(tmp_path).writing():
        pass


def test_places_that_cannot_be_written_to_are_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "taken" / ".orbitwise.lock").mkdir(parents=True)
    for name, says in (
        ("file", "is a file"),
        ("loop", "cannot be made"),
        ("taken", "cannot be written to"),
    ):
        with pytest.raises(CommandError, match=says), Folder(tmp_path / name).writing():
            pytest.fail("it cannot be written to")


def run_of(folder: Folder, settings: dict[str, object]) -> None:
    """A run that is complete, as far as its parts are tied together."""
    folder.prepare(settings, resume=False, force=True)
    folder.model.write_text(f"model of {settings}")
    folder.examples.write_text(f"examples of {settings}")
    tied = {"model": file_digest(folder.model), "examples": file_digest(folder.examples)}
    folder.write(folder.comparison, {"format": FORMAT, "digest": digest_of(settings), **tied})


@pytest.mark.parametrize("name", ["settings.json", "model.orbitwise", "examples.npz", "comparison.json"])
def test_files_of_two_runs_are_not_taken_for_one(tmp_path, name):
    one, other = Folder(tmp_path / "one"), Folder(tmp_path / "other")
    run_of(one, {"seed": 0, "data": "here"})
    run_of(other, {"seed": 1, "data": "here"})
    assert one.one_run()[0]["seed"] == 0
    (one.path / name).write_bytes((other.path / name).read_bytes())
    with pytest.raises(CommandError, match="were written by different runs"):
        one.one_run()


def test_what_may_differ_does_not_tell_runs_apart():
    settings = {"seed": 0, "command": "a", "versions": {}, "data": "here"}
    assert digest_of(settings) == digest_of(
        json.loads(json.dumps({"seed": 0, "command": "b", "data": "there"}))
    )
    assert digest_of(settings) != digest_of({"seed": 1})


def test_a_reader_sees_one_run_while_another_begins(tmp_path):
    folder, seen = Folder(tmp_path), []
    run_of(folder, {"seed": 0})

    def reading() -> tuple[object, str]:
        settings, _ = folder.one_run()
        if not seen:
            run_of(folder, {"seed": 1})  # between two of its reads
        seen.append(settings)
        return settings["seed"], folder.model.read_text()

    assert folder.steadily(reading) == (1, "model of {'seed': 1}")
    assert [each["seed"] for each in seen] == [0, 1]


def test_a_reader_gives_up_where_writers_do_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr("orbitwise.cli.folders.PAUSE", 0.0)
    folder = Folder(tmp_path)
    run_of(folder, {"seed": 0})
    with pytest.raises(CommandError, match="keeps writing"):
        folder.steadily(lambda: run_of(folder, {"seed": 0}))
    folder.model.write_text("of another")
    with pytest.raises(CommandError, match="were written by different runs"):
        folder.steadily(folder.one_run)


def test_links_to_folders_elsewhere_are_removed_and_not_what_they_lead_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    folder = Folder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / "candidates").symlink_to(tmp_path / "elsewhere")
    folder.prepare(SETTINGS, resume=False, force=True)
    assert (tmp_path / "elsewhere" / "mine").read_text() == "mine"
    assert not (folder.path / "candidates").is_symlink()
    (folder.path / "settings.json").unlink()
    (folder.path / "settings.json").mkdir()
    with pytest.raises(CommandError, match="cannot be made ready"):
        folder.prepare(SETTINGS, resume=False, force=True)


def test_links_in_place_of_files_are_replaced(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("{}")
    folder = Folder(tmp_path / "run")
    with folder.writing():
        folder.prepare(SETTINGS, resume=False, force=False)
        for file in (folder.comparison, folder.candidate(0, "none")):
            file.symlink_to(victim)
            folder.write(file, {"a": 1})
            assert not file.is_symlink()
            assert folder.read(file) == {"a": 1}
    assert victim.read_text() == "{}"


def test_links_in_place_of_folders_are_refused(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = Folder(tmp_path / "run")
    with folder.writing():
        folder.prepare(SETTINGS, resume=False, force=False)
        (folder.path / "progress" / "0-none").symlink_to(elsewhere)
        with pytest.raises(CommandError, match="0-none is a symbolic link, and results are not written"):
            folder.progress(0, "none")
        for name in ("candidates", "progress"):
            (folder.path / name).rename(tmp_path / name)
            (folder.path / name).symlink_to(elsewhere)
            with pytest.raises(CommandError, match=f"{name} is a symbolic link"):
                folder.prepare(SETTINGS, resume=True, force=False)
            with pytest.raises(CommandError, match=f"{name} is a symbolic link"):
                folder.write(folder.path / name / "a.json", {})
            (folder.path / name).unlink()
    assert not list(elsewhere.iterdir())


def test_a_folder_of_an_earlier_version_is_read_and_not_resumed(tmp_path):
    folder = Folder(tmp_path)
    run_of(folder, {"seed": 0, "digest": "of data"})
    folder.settings.write_text(json.dumps({"seed": 0, "digest": "of data, in another way"}))
    folder.comparison.write_text(json.dumps({"best": "none"}))
    settings, comparison = folder.one_run()
    assert (settings["seed"], comparison["best"]) == (0, "none")
    assert is_earlier(settings, comparison)
    with pytest.raises(CommandError, match=r"written by an earlier version of Orbitwise.* --force, or"):
        folder.prepare({"seed": 0, "digest": "of data"}, resume=True, force=False)
    assert not folder.prepare({"seed": 0, "digest": "of data"}, resume=False, force=True)
    assert folder.prepare({"seed": 0, "digest": "of data"}, resume=True, force=False)
