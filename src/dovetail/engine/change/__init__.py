"""Changes of a running engine: another plan, backfill of new queries, savepoints and rollback."""
