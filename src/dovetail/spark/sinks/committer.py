"""Committers: on the driver, they turn the files that shards have written into results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dovetail.spark.sinks.stage import Stage, WrittenFile


class Committer(ABC):
    """Commits the batches of one query in one run.

    For each batch the session calls `check`, then `commit` if the batch has results. The first batch of a start may be a replay: if it
    has no results, the session calls `discard`. A later `commit` of the same batch replaces the earlier one.
    """

    stage: Stage
    """Writes the files on the workers."""
    needs_content_id = False
    """Whether `commit` compares content ids, to commit nothing if a replay gives the same results."""

    @property
    def staging_directory(self) -> str:
        """Local directory in which a killed run leaves files that the next start removes, or empty."""
        return ""

    @abstractmethod
    def prepare(self) -> None:
        """Make the sink ready for this run; from here on no earlier run can commit."""

    @abstractmethod
    def check(self, batch_id: int, files: Sequence[WrittenFile]) -> None:
        """Raise `StateError` unless all reported files are there, whole; no reader sees a change."""

    @abstractmethod
    def commit(self, batch_id: int, files: Sequence[WrittenFile], content_id: int = 0) -> None:
        """Make the files of a batch its results, in place of those of an earlier attempt.

        Equal content ids mean equal results.
        """

    @abstractmethod
    def discard(self, batch_id: int) -> None:
        """Remove the results that an earlier attempt at this batch has committed, if any."""

    def clear(self) -> None:  # noqa: B027
        """Release what this run holds, at its end."""
