"""Explanations of plans: as text, as plain data and as mermaid diagrams."""
