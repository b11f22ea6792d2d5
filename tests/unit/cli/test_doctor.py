"""`dovetail doctor` reports what is wrong with a hint, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dovetail.cli.main import app


def test_findings_for_scripts() -> None:
    answer = CliRunner().invoke(app, ["doctor", "--json"])
    findings = {finding["name"]: finding for finding in json.loads(answer.stdout)}
    assert answer.exit_code == (0 if all(finding["is_ok"] for finding in findings.values()) else 1)
    assert {
        "Dovetail",
        "Python",
        "compiled code",
        "extra delta",
        "Java",
        "PySpark",
        "workers' Python",
    } <= findings.keys()
    assert findings["compiled code"]["is_ok"]


def test_what_is_wrong_and_how_to_fix_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old := tmp_path / "bin" / "java").parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_312\"' >&2\n")
    old.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "python"))
    monkeypatch.setenv("DOVETAIL_SHARED_MEMORY_DIR", str(tmp_path / "nowhere"))
    answer = CliRunner().invoke(app, ["doctor", "--spark"], env={"COLUMNS": "400"})
    shown = [line.strip() for line in answer.stdout.splitlines()]
    assert answer.exit_code == 1
    assert f"✗ Java            Spark needs Java 17 or later; found: 1.8.0_312 (JAVA_HOME is {tmp_path})" in shown
    assert "Hint: unset JAVA_HOME, or set it to a Java 17" in shown
    assert any(line.startswith("✗ workers' Python PYSPARK_PYTHON is '") for line in shown)
    assert any(line.startswith("✗ shared memory   DOVETAIL_SHARED_MEMORY_DIR is '") for line in shown)
    assert shown[-1].startswith("3 of ")
    assert not any("a job on Spark" in line for line in shown), "it is not run if something is wrong"
