"""Checks of what a local Spark session needs, without starting Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from dovetail.environment import Finding
from dovetail.errors import DovetailError
from dovetail.plan.explain.text import format_bytes
from dovetail.spark.compat import INSTALLED, OLDEST, is_at_least, version_text
from dovetail.spark.driver.builder import worker_faults
from dovetail.spark.state.shared_memory import shared_memory_parent

MIN_JAVA = 17
_NEWEST = (4, 3)
"""The last version that the tests run on."""
_PRINT_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])))"


def check_environment() -> list[Finding]:
    """Check Java, PySpark, the workers' Python, shared memory and Kafka's connector."""
    return [check_java(), _check_pyspark(), _check_workers(), _check_shared_memory(), _check_kafka()]


def check_java() -> Finding:
    """Check the Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"  # as Spark does: JAVA_HOME before PATH
    where = f"JAVA_HOME is {home}" if home else (shutil.which(java) or "not on the PATH")
    try:
        process = subprocess.run([java, "-version"], check=False, capture_output=True, text=True)  # noqa: S603
    except OSError:
        version = None
    else:
        version = re.search(r'version "((?:1\.)?(\d+)[^"]*)', process.stderr + process.stdout)
    if version and int(version[2]) >= MIN_JAVA:
        return Finding("Java", is_ok=True, text=f"{version[1]} ({where})")
    hint = (
        f"unset JAVA_HOME, or set it to a Java {MIN_JAVA}"
        if home
        else f"on Debian or Ubuntu run 'sudo apt-get install openjdk-{MIN_JAVA}-jre-headless'"
    )
    found = version[1] if version else "none"
    return Finding("Java", False, f"Spark needs Java {MIN_JAVA} or later; found: {found} ({where})", hint)


def _check_pyspark() -> Finding:
    span = f"{version_text(OLDEST)} to {version_text(_NEWEST)}"
    is_newer = not is_at_least(version_text(_NEWEST), tuple(map(int, INSTALLED.split(".")[:2])))  # type: ignore[arg-type]
    note = f"; Dovetail is tested with {span}" if is_newer else ""
    home = os.environ.get("SPARK_HOME")
    text = f"{INSTALLED}, {Path(pyspark.__file__).parent}{note}"
    if home and Path(home).resolve() != Path(pyspark.__file__).parent.resolve():
        hint = "unset SPARK_HOME, or make sure that it is the same version"
        return Finding("PySpark", True, f"{text}; SPARK_HOME is {home}, whose jars are used", hint)
    return Finding("PySpark", is_ok=True, text=text)


def _check_workers() -> Finding:
    python = os.environ.get("PYSPARK_PYTHON") or sys.executable
    faults = list(worker_faults(python))
    if faults:
        return Finding("workers' Python", False, faults[0][0], faults[0][1])
    process = subprocess.run([python, "-c", _PRINT_VERSION], check=False, capture_output=True, text=True)  # noqa: S603
    version, driver = process.stdout.strip(), ".".join(map(str, sys.version_info[:3]))
    if version.rpartition(".")[0] != driver.rpartition(".")[0]:
        text = f"{python} is {version}, this process {driver}: Spark refuses different minor versions"
        return Finding(
            "workers' Python", False, text, "unset PYSPARK_PYTHON, or set it to this Python: " + sys.executable
        )
    return Finding("workers' Python", is_ok=True, text=f"{version}, {python}")


def _check_shared_memory() -> Finding:
    try:
        parent = shared_memory_parent()
    except DovetailError as error:
        return Finding("shared memory", False, error.message, error.hint)
    usage = shutil.disk_usage(parent)
    text = f"{format_bytes(usage.free)} free of {format_bytes(usage.total)} in {parent}"
    if parent != Path("/dev/shm") and "DOVETAIL_SHARED_MEMORY_DIR" not in os.environ:  # noqa: S108 - compared only
        hint = "give a container more with --shm-size=4g, or keep DOVETAIL_SHARED_MEMORY_DIR on a fast disk"
        return Finding("shared memory", True, f"{text}, because /dev/shm is missing or smaller than 1 GB: slower", hint)
    if usage.free < usage.total // 20:
        return Finding("shared memory", False, f"{text}: nearly full", "remove files there that nothing uses")
    return Finding("shared memory", is_ok=True, text=text)


def _check_kafka() -> Finding:
    jars = sorted(Path(pyspark.__file__).parent.glob("jars/spark-sql-kafka-*.jar"))
    if jars:
        return Finding("Kafka", is_ok=True, text=jars[0].name)
    package = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{INSTALLED}"
    hint = f'name it when Spark starts: conf={{"spark.jars.packages": "{package}"}}'
    return Finding("Kafka", True, "Spark's connector is not among its jars", hint)
