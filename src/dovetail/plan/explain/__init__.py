"""Plans as text for people, as data for programs, and as diagrams."""
