"""Run the core of the tests on Spark with each supported version: `python tools/spark_versions.py [name ...]`.

Each combination of PySpark, Python and pandas has a virtual environment below `.versions/`, with the pins of `requirements/dev.txt`
except for those that a file of `requirements/versions` replaces. The first combination also writes a checkpoint, and all others
continue it. A combination whose Python is not installed is skipped.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "requirements"
ENVIRONMENTS = ROOT / ".versions"
CHECKPOINT = ENVIRONMENTS / "stored_job.zip"
"""What the first combination writes and the others continue."""


@dataclass(frozen=True)
class Combination:
    """Versions that are tested together; what is not named is as in `requirements/dev.txt`."""

    name: str
    python: str
    replaced: tuple[str, ...] = ()
    """Files of `requirements/versions`, without their suffix."""

    @property
    def interpreter(self) -> Path:
        return ENVIRONMENTS / self.name / "bin" / "python"


# Each version of PySpark, Python and pandas is in at least one: all of them with one another would take hours.
COMBINATIONS = (
    Combination("pyspark-4.0", "3.11", ("pyspark-4.0",)),
    Combination("pyspark-4.1", "3.12", ("pyspark-4.1",)),
    Combination("pyspark-4.2", "3.12", ("pyspark-4.2", "pandas-3")),
    Combination("pyspark-4.3", "3.11"),
    Combination("python-3.13", "3.13", ("pandas-3",)),
    Combination("python-3.14", "3.14", ("pandas-3",)),
)


def pins(text: str) -> Iterator[tuple[str, str]]:
    """Yield each package of a requirements file, with its lines."""
    for block in re.split(r"(?m)^(?=[A-Za-z0-9])", text):
        if match := re.match(r"[\w.-]+", block):
            yield match[0], block


def requirements(combination: Combination) -> str:
    """Return the pins of a combination, with hashes."""
    pinned = dict(pins((REQUIREMENTS / "dev.txt").read_text(encoding="utf-8")))
    for name in combination.replaced:
        pinned |= dict(pins((REQUIREMENTS / "versions" / f"{name}.txt").read_text(encoding="utf-8")))
    return "".join(pinned.values())


def find_python(version: str) -> str | None:
    """Return an interpreter of a version: on the PATH, or one that pyenv has installed."""
    pyenv = os.environ.get("PYENV_ROOT", "~/.pyenv")
    installed = sorted(glob.glob(os.path.expanduser(f"{pyenv}/versions/{version}.*/bin/python")))  # noqa: PTH111, PTH207
    for candidate in (shutil.which(f"python{version}"), *installed):
        if candidate is not None and _version(candidate) == version:
            return candidate
    return None


def _version(python: str) -> str:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", program], capture_output=True, text=True, check=False).stdout.strip()


def install(combination: Combination, python: str) -> None:
    """Create the environment of a combination, unless it exists with the same pins."""
    folder = ENVIRONMENTS / combination.name
    text = requirements(combination)
    stamp = folder / f"installed-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if stamp.exists():
        return
    print(f"Creating {folder.relative_to(ROOT)} ...", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    (folder / "requirements.txt").write_text(text, encoding="utf-8")
    pip = [str(combination.interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", str(folder / "requirements.txt")], check=True)
    stamp.touch()


def run(combination: Combination, *arguments: str | Path) -> bool:
    """Run the combination's Python on this checkout; return whether it succeeded."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    if CHECKPOINT.exists() and combination != COMBINATIONS[0]:
        environment["DOVETAIL_STORED_JOB"] = str(CHECKPOINT)
    return subprocess.run([combination.interpreter, *arguments], cwd=ROOT, env=environment, check=False).returncode == 0


def test(combination: Combination) -> str:
    """Install and test a combination; return how it went."""
    python = find_python(combination.python)
    if python is None:
        return f"skipped: there is no Python {combination.python}"
    install(combination, python)
    begin = time.monotonic()
    succeeded = run(combination, "-m", "pytest", "-q", "-m", "core", "tests/spark")
    if succeeded and combination == COMBINATIONS[0]:
        succeeded = run(combination, "tests/spark/stored_job.py", CHECKPOINT)
    return f"{'passed' if succeeded else 'FAILED'} in {time.monotonic() - begin:.0f} s"


def main(names: Sequence[str]) -> int:
    """Test the combinations with these names, or all, and return the exit status."""
    unknown = {*names} - {combination.name for combination in COMBINATIONS}
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(each.name for each in COMBINATIONS)}")
        return 2
    results = {}
    for combination in COMBINATIONS:
        if not names or combination.name in names:
            print(f"== {combination.name}", flush=True)
            results[combination.name] = test(combination)
    for name, result in results.items():
        print(f"{name:12} {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
