"""The package runs as a program."""

import runpy

import pytest


def test_the_package_is_the_command(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["orbitwise", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("orbitwise.cli", run_name="__main__")
    assert ended.value.code == 0
    assert "learn" in capsys.readouterr().out
