"""The join of new tuples: probe paths, probe trees, gathering, verification."""
