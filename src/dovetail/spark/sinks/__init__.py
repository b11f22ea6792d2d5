"""Where results go, exactly once."""
