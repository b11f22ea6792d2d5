"""Data files of the command line: streams read from them, results written to them."""
