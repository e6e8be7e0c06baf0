"""embedctl: a corpus in, vectors out, exactly once."""

__version__ = "0.2.0"
