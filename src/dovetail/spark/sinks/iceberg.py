"""Iceberg tables, through the package pyiceberg and one of its catalogs: no jars.

Properties of a table store its last batch, the run that may commit, and the content of the last batch. Snapshots expire, properties do
not; both change in one transaction. The catalog refuses a transaction if the table has another snapshot than the one that it was made
for, so every commit makes a snapshot, even one without files. pyiceberg would repeat a refused commit unchecked: the committer turns
that off and repeats commits itself, after its checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from dovetail._extras import requires_extra
from dovetail.errors import ConfigError
from dovetail.spark.sinks.lake import ConflictError, LakeSink, LakeTable, TableState, table_schema
from dovetail.spark.sinks.owners import OWNER_PROPERTY, Owner, SinkUse
from dovetail.spark.sinks.sink import shares_disk
from dovetail.spark.sinks.stage import BATCH_COLUMN, FileStage, WrittenFile
from dovetail.spark.sinks.stores import local_path

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

CatalogSource: TypeAlias = "Catalog | str | Mapping[str, str]"
_STATE = ("dovetail.run", "dovetail.batch", "dovetail.content")
"""Properties that store the fields of a `TableState`."""
_RETRIES = "commit.retry.num-retries"
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of the tables that are created here: otherwise each commit would leave a metadata file and a manifest for ever."""


class IcebergSink(LakeSink):
    """Write to an Iceberg table, exactly once; `start` creates it, and its namespace, if missing.

    Parameters
    ----------
    catalog
        A catalog of pyiceberg, or what `pyiceberg.catalog.load_catalog` takes: its name, or a dict of properties.
    table
        Name of the table with its namespace, such as `"shop.funnel"`.
    """

    format = "Iceberg"

    def __init__(self, catalog: CatalogSource, table: str) -> None:
        with requires_extra("iceberg", "dt.sinks.iceberg()"):
            import pyiceberg  # noqa: F401, PLC0415 - an optional package, used from here on
        if not isinstance(table, str) or "." not in table.strip("."):
            raise ConfigError(
                f"dt.sinks.iceberg got the table {table!r}; expected a namespace and a name",
                'write, for example, "shop.funnel"',
            )
        self.name = table
        self._catalog = _CatalogHandle(_loaded(catalog))

    def __repr__(self) -> str:
        return f"iceberg({self.name!r})"

    def table(self, use: SinkUse) -> LakeTable:  # noqa: ARG002
        return IcebergLakeTable(self._catalog, self.name)

    def check(self, use: SinkUse) -> None:
        super().check(use)
        self._check_disk(self.table(use), use)

    def claim(self, use: SinkUse) -> Any:
        lock = super().claim(use)
        try:
            self._check_disk(self.table(use), use)  # now the table has a location
        except BaseException:
            if lock is not None:
                lock.release()
            raise
        return lock

    def _check_disk(self, table: LakeTable, use: SinkUse) -> None:
        """Refuse a table on the driver's disk if workers may have other disks."""
        if table.open() and table.local is not None and not self._shares_disk(use):
            raise ConfigError(
                f"query {use.query!r}: {table.title} is in {table.local}, on the driver's disk, which the workers may not share",
                "use a catalog whose warehouse is in an object store",
            )

    def _shares_disk(self, use: SinkUse) -> bool:
        return shares_disk("", use)


class IcebergLakeTable(LakeTable):
    """An Iceberg table and its metadata."""

    def __init__(self, catalog: _CatalogHandle, name: str) -> None:
        self.title = f"the Iceberg table {name}"
        self._handle, self._name = catalog, name
        self._opened: Table | None = None

    @property
    def _catalog(self) -> Catalog:
        return self._handle.catalog

    @property
    def local(self) -> Path | None:  # type: ignore[override]
        return local_path(self._table.location()) if self._opened is not None or self.open() else None

    @property
    def _table(self) -> Table:
        assert self._opened is not None  # noqa: S101 - callers have opened it
        return self._opened

    def open(self) -> bool:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError  # noqa: PLC0415 - an optional package

        try:
            self._opened = self._catalog.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._opened = None
        except Exception as error:  # catalogs raise errors of their databases and servers
            raise ConfigError(
                f"{self.title} cannot be read: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                "check the catalog and the name of the table",
            ) from error
        return self._opened is not None

    def create(self, schema: pa.Schema, owner: str) -> None:
        properties = {**_PROPERTIES, OWNER_PROPERTY: owner}
        try:
            with suppress(Exception):  # another start may have created it at the same time
                self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            self._catalog.create_table(self._name, _schema(schema), properties=properties)
        except Exception as error:
            if self.open():
                return  # another start was first; the caller checks the owner next
            raise ConfigError(
                f"{self.title} cannot be created: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
                "create its namespace, or check the catalog and its warehouse",
            ) from error

    def set_owner(self, owner: str) -> None:
        with self._table.transaction() as change:
            change.set_properties({OWNER_PROPERTY: owner})

    @property
    def owner(self) -> str | None:
        return self._table.properties.get(OWNER_PROPERTY)

    def columns(self) -> list[tuple[str, str]]:
        return [(column.name, str(column.field_type)) for column in self._table.schema().fields]

    def columns_of(self, schema: pa.Schema) -> list[tuple[str, str]]:
        return [(column.name, str(column.field_type)) for column in _schema(schema).fields]

    def obstacle(self) -> str | None:
        return None if self._table.spec().is_unpartitioned() else "is partitioned"

    def last_batch(self) -> int | None:
        from pyiceberg.conversions import from_bytes  # noqa: PLC0415
        from pyiceberg.types import LongType  # noqa: PLC0415

        column = self._table.schema().find_field(BATCH_COLUMN).field_id
        bounds = [(task.file.upper_bounds or {}).get(column) for task in self._table.scan().plan_files()]
        lasts: list[Any] = [None if bound is None else from_bytes(LongType(), bound) for bound in bounds]
        if None in lasts:
            lasts = self._table.scan(selected_fields=(BATCH_COLUMN,)).to_arrow()[BATCH_COLUMN].unique().to_pylist()
        return max((last for last in lasts if last is not None), default=None)

    def state(self, owner: Owner) -> TableState:  # noqa: ARG002
        stored = (self._table.properties.get(name) for name in _STATE)
        return TableState(*(None if number is None else int(number) for number in stored))

    def commit(self, owner: Owner, state: TableState, files: Sequence[WrittenFile], replaced: int | None) -> None:  # noqa: ARG002
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException  # noqa: PLC0415

        numbers = zip(_STATE, (state.run, state.batch, state.content), strict=True)
        stored = {name: str(number) for name, number in numbers if number is not None}
        self._table.metadata.properties[_RETRIES] = "0"  # for this object only
        try:
            with self._table.transaction() as change:
                change.set_properties(stored)
                rows = f"{BATCH_COLUMN} = {replaced}"
                if replaced is not None and any(True for _ in self._table.scan(row_filter=rows).plan_files()):
                    change.delete(rows)
                if files:
                    paths = [f"{self._data_location()}/{file.name}" for file in files]
                    change.add_files(paths, snapshot_properties=stored, check_duplicate_files=False)
                else:
                    with change.update_snapshot(snapshot_properties=stored).fast_append():
                        pass
        except (CommitFailedException, CommitStateUnknownException) as error:
            raise ConflictError from error

    def _data_location(self) -> str:
        stored = self._table.properties.get("write.data.path")
        return str(stored or f"{self._table.location().rstrip('/')}/data").rstrip("/")

    def stage(self, use: SinkUse, prefix: str) -> FileStage:
        from pyiceberg.io.pyarrow import PyArrowFileIO  # noqa: PLC0415

        self.open()
        store, host, directory = PyArrowFileIO.parse_location(self._data_location())
        files = PyArrowFileIO(self._table.io.properties).fs_by_scheme(store, host)
        if self.local is not None:
            Path(directory).mkdir(parents=True, exist_ok=True)
        columns = [pa.field(column.name, _file_type(column.type)) for column in table_schema(use.schema)]
        return FileStage(
            files, directory, prefix, f"query {use.query!r}: its sink iceberg({self._name!r})", pa.schema(columns)
        )


class _CatalogHandle:
    """A catalog, which another process loads again by its name and properties."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def __reduce__(self) -> tuple[Any, ...]:
        return _reloaded, (self.catalog.name, dict(self.catalog.properties))


def _reloaded(name: str, properties: Mapping[str, str]) -> _CatalogHandle:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415

    return _CatalogHandle(load_catalog(name, **properties))


def _loaded(catalog: Any) -> Catalog:
    from pyiceberg.catalog import Catalog, load_catalog  # noqa: PLC0415

    if isinstance(catalog, Catalog):
        return catalog
    try:
        if isinstance(catalog, str):
            return load_catalog(catalog)
        if isinstance(catalog, Mapping):
            return load_catalog("dovetail", **catalog)
    except Exception as error:
        raise ConfigError(
            f"dt.sinks.iceberg cannot load the catalog {catalog if isinstance(catalog, str) else 'of these properties'}: "
            f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
            "see pyiceberg's configuration of catalogs, or give it a catalog object",
        ) from error
    raise ConfigError(
        f"dt.sinks.iceberg got the catalog {catalog!r}; expected a catalog of pyiceberg, its name, or a dict of properties",
        'write, for example, dt.sinks.iceberg("prod", "shop.funnel") for a catalog of .pyiceberg.yaml',
    )


def _file_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column in files: Iceberg has no integers below 32 bits."""
    return pa.int32() if pa.types.is_integer(kind) and kind.bit_width < 32 else kind


def _schema(schema: pa.Schema) -> Any:
    """Return the Iceberg schema of a table of these results."""
    from pyiceberg import types  # noqa: PLC0415
    from pyiceberg.schema import Schema  # noqa: PLC0415

    def converted(kind: pa.DataType) -> Any:
        if pa.types.is_timestamp(kind):
            return types.TimestampType() if kind.tz is None else types.TimestamptzType()
        if pa.types.is_decimal(kind):
            return types.DecimalType(kind.precision, kind.scale)
        is_text, is_bytes = pa.types.is_large_string(kind), pa.types.is_large_binary(kind)
        plain = pa.string() if is_text else pa.binary() if is_bytes else _file_type(kind)
        return {
            pa.bool_(): types.BooleanType(), pa.int32(): types.IntegerType(), pa.int64(): types.LongType(),
            pa.float32(): types.FloatType(), pa.float64(): types.DoubleType(), pa.string(): types.StringType(),
            pa.binary(): types.BinaryType(), pa.date32(): types.DateType(),
        }[plain]  # fmt: skip

    columns = table_schema(schema)
    return Schema(
        *(types.NestedField(index + 1, column.name, converted(column.type)) for index, column in enumerate(columns))
    )
