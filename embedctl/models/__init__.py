"""Finding and reading model folders."""
