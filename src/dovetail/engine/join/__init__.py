"""From new tuples to results: probe paths, probe trees, gathering, verification."""
