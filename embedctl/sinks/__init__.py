"""Where vectors go."""
