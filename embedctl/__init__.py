"""embedctl: a corpus in, vectors out, exactly once."""

__version__ = "0.1.0"
