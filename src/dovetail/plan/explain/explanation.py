"""The result of `explain()`."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dovetail._display import html_paragraphs


@dataclass(frozen=True, repr=False)
class Explanation:
    """A plan explained: as text for people, as data for programs, as a mermaid diagram."""

    text: str
    _data: Mapping[str, Any]
    _diagram: str

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data that `json.dumps` accepts."""
        return deepcopy(dict(self._data))

    def mermaid(self) -> str:
        """Return the plan as a mermaid diagram."""
        return self._diagram

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return html_paragraphs(self.text)
