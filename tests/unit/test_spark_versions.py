"""What `make test-versions` installs: the pins of `requirements/dev.txt`, except for the versions under test."""

from __future__ import annotations

import re

import pytest

from spark_versions import COMBINATIONS, REQUIREMENTS, Combination, main, pins, requirements

DEV = dict(pins((REQUIREMENTS / "dev.txt").read_text(encoding="utf-8")))


@pytest.mark.parametrize("combination", COMBINATIONS, ids=lambda combination: combination.name)
def test_a_combination_differs_from_the_pins_in_what_it_names(combination: Combination) -> None:
    pinned = dict(pins(requirements(combination)))
    replaced = {re.sub(r"-[\d.]+$", "", name) for name in combination.replaced}
    assert {name for name in DEV if pinned[name] != DEV[name]} == replaced
    assert {*pinned} == {*DEV}
    assert all("--hash=sha256:" in block for block in pinned.values())


def test_each_minor_version_of_pyspark_is_tested() -> None:
    versions = {re.findall(r"pyspark==(\d+\.\d+)", requirements(combination))[0] for combination in COMBINATIONS}
    assert versions == {"4.0", "4.1", "4.2", "4.3"}


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pyspark-3.5"]) == 2
    assert "unknown: pyspark-3.5; known: pyspark-4.0, " in capsys.readouterr().out
