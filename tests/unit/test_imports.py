from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKER = ROOT / "tools" / "check_imports.py"


def check(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(CHECKER), str(tree)], capture_output=True, text=True, check=False)


def test_the_package_keeps_the_rules() -> None:
    result = check(ROOT / "src" / "dovetail")
    assert (result.returncode, result.stdout) == (0, "imports: all rules hold\n")


@pytest.mark.parametrize(
    ("place", "line", "rule"),
    [
        ("testing/oracle.py", "from dovetail.engine import shard", "testing may import query, schema; not engine"),
        ("testing/oracle.py", "from ..engine.shard import X", "testing may import query, schema; not engine"),
        ("testing/oracle.py", "from .. import engine", "testing may import query, schema; not engine"),
        ("schema.py", "import dovetail.query.model", "schema may import nothing of ours; not query"),
        ("cli/main.py", "from dovetail import engine", "not engine"),
        ("engine/shard.py", "import dovetail as dt", "not dovetail"),
        ("engine/shard.py", "import numba", "numba may be imported only in engine/kernels/"),
        ("session/local.py", "from pyspark.sql import DataFrame", "pyspark may be imported only in spark/"),
        (
            "spark/wire.py",
            "from pyspark.sql.pandas import types",
            "pyspark.sql.pandas may be imported only in spark/compat.py",
        ),
        ("plan/query_plan.py", "import sqlglot.expressions", "sqlglot may be imported only in query/"),
        ("__init__.py", "import hypothesis", "hypothesis may be imported only in testing/"),
        ("optimizer/cost/probe_cost.py", "import matplotlib.pyplot", "matplotlib may be imported only in experiments/"),
        ("experiments/raghavan.py", "from dovetail.optimizer.cost.probe_cost import path_cost", "not optimizer"),
        ("testing/asserts.py", "import duckdb", "duckdb may be imported nowhere in the package"),
        ("novelty.py", "from dovetail.schema import StreamSchema", "novelty has no rule"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, place: str, line: str, rule: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'"""Planted."""\n\ndef late() -> None:\n    {line}\n')
    result = check(tmp_path)
    assert result.returncode == 1
    assert result.stdout.startswith(f"{path}:4: ")
    assert rule in result.stdout


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("testing/oracle.py", "from dovetail.query.model import JoinQuery"),
        ("testing/strategies.py", "from hypothesis import strategies"),
        ("engine/kernels/extend.py", "from dovetail.engine.kernels.compile import kernel; import numba"),
        ("engine/shard.py", "from .window_store import WindowStore; from ..errors import StateError"),
        ("query/sql.py", "import sqlglot"),
        ("experiments/raghavan.py", "import dovetail as dt; import matplotlib"),
        (
            "cli/main.py",
            "import dovetail as dt; from dovetail import LocalSession; from dovetail.errors import QueryError",
        ),
        ("__init__.py", "from dovetail.session.local import LocalSession"),
    ],
)
def test_allowed_imports_pass(tmp_path: Path, place: str, line: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    assert check(tmp_path).stdout == "imports: all rules hold\n"


def test_import_dovetail_loads_nothing_heavy() -> None:
    program = (
        "import sys, dovetail; "
        "print(*[name for name in ('pyspark', 'numba', 'sqlglot', 'hypothesis', 'duckdb', 'polars') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("sessions", ("dovetail.engine", "numba", "pandas")),
        # Spark starts a process that unpickles a callback whenever a streaming query starts.
        (
            "worker.callbacks",
            ("dovetail.engine", "dovetail.optimizer", "dovetail.workloads", "numba", "pandas", "sqlglot"),
        ),
    ],
)
def test_the_driver_on_spark_loads_no_engine(module: str, unwanted: tuple[str, ...]) -> None:
    program = (
        f"import sys, dovetail.spark.{module}; print(*[name for name in sys.modules if name.startswith({unwanted})])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_spark_modules_have_no_import_cycles_even_inside_functions() -> None:
    own, root = "dovetail.spark.", ROOT / "src" / "dovetail" / "spark"
    imports = {
        ".".join(path.relative_to(root).with_suffix("").parts): {
            node.module.removeprefix(own)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(own)
        }
        for path in root.rglob("*.py")
    }
    assert imports["driver.pipeline"] > {"worker.callbacks", "driver.layout", "wire"}
    TopologicalSorter(imports).prepare()  # raises at a cycle
