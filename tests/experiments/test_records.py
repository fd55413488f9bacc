"""Records are whole files in folders that need not be there, and a failed write leaves the last one."""

import json
import os

import pytest

from orbitwise.experiments.records import write_record


def test_a_record_is_read_as_it_was_written_and_the_last_survives_a_failure(tmp_path, monkeypatch):
    out = tmp_path / "new" / "folder" / "record.json"
    write_record({"cells": {"a": 1.5}}, out)
    assert json.loads(out.read_text()) == {"cells": {"a": 1.5}}

    def fail(*paths):
        raise OSError("the disk went away")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="the disk went away"):
        write_record({"cells": {"b": 2}}, out)
    assert json.loads(out.read_text()) == {"cells": {"a": 1.5}}
    assert [path.name for path in out.parent.iterdir()] == ["record.json"]
