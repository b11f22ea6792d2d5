"""JSON names of fields; snapshots, checkpoints and metrics test the rest of the codec."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from dovetail.codec import from_json, to_json
from dovetail.errors import StateError


@dataclass(frozen=True)
class Renamed:
    """A record that was stored before its field got another name."""

    current: int = field(metadata={"name": "stored"})


def test_a_field_keeps_the_name_that_stored_data_have() -> None:
    assert to_json(Renamed(1)) == {"stored": 1}
    assert from_json(Renamed, {"stored": 1}) == Renamed(1)
    for content in ({"current": 1}, {}):
        with pytest.raises(StateError, match="an object with stored"):
            from_json(Renamed, content)
