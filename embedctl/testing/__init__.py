"""Contracts that every source, sink and encoder inherits; for third parties too."""
