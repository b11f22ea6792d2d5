"""Check which package imports which: `python tools/check_imports.py [package directory]`.

`ARROWS` says which of our packages each may import; those in `OPEN` are open to all, and `PUBLIC` stands for
`import dovetail` itself. `ONLY_IN` says where a third-party package may be imported. An import by name at run time
(`importlib.import_module`) slips through; `tests/unit/test_imports.py` looks at what is really loaded.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PUBLIC = "dovetail"
OPEN = {"errors", "_typing", "_display", "_extras", "config"}
CORE = {"schema", "config", "codec", "query", "stats", "plan", "optimizer", "engine", "partition"}
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "_typing": set(),
    "_display": set(),
    "_extras": set(),
    "schema": set(),
    "config": set(),
    "query": {"schema"},
    "codec": set(),
    "stats": {"codec"},
    "plan": {"schema", "codec", "query", "stats"},
    "optimizer": {"schema", "query", "stats", "plan"},
    "engine": {"schema", "codec", "query", "stats", "plan", "config"},
    "partition": {"query"},
    "calibrate": CORE,
    "live": set(),
    "environment": {"engine"},
    "session": CORE | {"calibrate"},
    "spark": CORE | {"calibrate", "environment", "live", "session", "workloads"},
    "testing": {"schema", "query"},
    "workloads": {"schema"},
    "cli": {PUBLIC, "environment", "workloads"},
    "experiments": {PUBLIC, "workloads"},
}
ONLY_IN: dict[str, str | tuple[str, ...] | None] = {
    "pyspark": "spark/",
    "pyspark.sql.pandas": "spark/compat.py",  # differs between versions
    "pyspark.sql.streaming.datasource": "spark/compat.py",  # some versions lack it
    "numba": ("engine/kernels/", "experiments/"),  # the papers' own programs, tuple at a time
    "sqlglot": "query/",
    "hypothesis": "testing/",
    "matplotlib": "experiments/",
    "deltalake": "spark/sinks/",
    "pyiceberg": "spark/sinks/",
    "duckdb": None,
    "polars": None,
}


def imported(tree: ast.Module, module: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Give the line and the dotted path of each import; `module` is the importing package's path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, tuple(name.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level + 1] if node.level else ()
            start = base + tuple(node.module.split(".") if node.module else ())
            for name in node.names:
                yield node.lineno, (*start, name.name)


def broken_rule(layer: str, place: str, target: tuple[str, ...]) -> str | None:
    """Say which rule an import of `target` breaks in file `place` of package `layer`, if any."""
    names = [".".join(target[:length]) for length in range(1, len(target) + 1)]
    for name in [name for name in names if name in ONLY_IN]:
        home = ONLY_IN[name]
        if home is None or not place.startswith(home):
            homes = " and ".join([home] if isinstance(home, str) else home or ())
            return f"{name} may be imported {f'only in {homes}' if homes else 'nowhere in the package'}"
    if target[0] != PUBLIC or layer == "__init__":
        return None
    if layer not in ARROWS:
        return f"{layer} has no rule: add it to ARROWS"
    wanted = target[1] if len(target) > 1 and target[1] in ARROWS else PUBLIC
    if wanted == layer or wanted in OPEN or wanted in ARROWS[layer]:
        return None
    return f"{layer} may import {', '.join(sorted(ARROWS[layer])) or 'nothing of ours'}; not {wanted}"


def violations(root: Path) -> Iterator[str]:
    """Give a line for each import in the package directory `root`, and in `experiments`, that breaks a rule."""
    experiments = Path(__file__).resolve().parents[1] / "experiments"
    found = [(path, path.relative_to(root)) for path in root.rglob("*.py")]
    found += [(path, path.relative_to(experiments.parent)) for path in experiments.rglob("*.py")]
    for path, place in sorted(found):
        layer = place.parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for line, target in imported(tree, (PUBLIC, *place.parts[:-1])):
            if rule := broken_rule(layer, place.as_posix(), target):
                yield f"{path}:{line}: {'.'.join(target)}: {rule}"


def main() -> int:
    """Print what is wrong and give the exit status."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "src" / PUBLIC
    found = list(violations(root))
    print("\n".join(found) or "imports: all rules hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
