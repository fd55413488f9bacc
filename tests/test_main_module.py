import runpy
import sys

import pytest


def test_the_package_can_be_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["orbitwise", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("orbitwise", run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out.strip()
