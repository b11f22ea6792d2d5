"""Unit costs are measured once, cached, and measured again when the file cannot be read."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from dovetail import calibrate as module
from dovetail.calibrate import UnitTimes, calibrate


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module._calibrated.cache_clear()


def test_units_are_measured_once_and_kept(tmp_path: Path) -> None:
    units = calibrate()
    assert all(value > 0 for value in asdict(units).values())
    (path,) = (tmp_path / "dovetail").iterdir()
    small, large = (UnitTimes(**stored) for stored in json.loads(path.read_text()))
    assert asdict(small) == pytest.approx(asdict(units))
    assert asdict(calibrate(1e12)) == pytest.approx(asdict(large))
    module._calibrated.cache_clear()
    assert calibrate() == units


@pytest.mark.parametrize("content", ["", "{}", "[1]", "[1, 2]", '[{"insert": 1}, {}]', "not json"])
def test_a_damaged_file_is_measured_again(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = UnitTimes(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    monkeypatch.setattr(module, "_measure", lambda _: measured)
    path = module._cache_file()
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert asdict(calibrate()) == pytest.approx(asdict(measured))
    assert [UnitTimes(**stored) for stored in json.loads(path.read_text())] == [measured, measured]
    assert path.is_relative_to(tmp_path)


def test_an_unwritable_home_directory_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dovetail").write_text("a file where the directory should be")
    monkeypatch.setattr(module, "_measure", lambda _: UnitTimes(*[1.0] * 9))
    assert calibrate().probe == 1.0


def test_a_stage_costs_its_calls_probes_and_matches() -> None:
    units = UnitTimes(
        insert=0.0, expire=0.0, probe=2.0, match=3.0, call=10.0, value=0.0, store=0.0, batch_result=0.0, batch_store=0.0
    )
    assert units.stage(calls=1, probes=5, matches=2) == 10 + 10 + 6
