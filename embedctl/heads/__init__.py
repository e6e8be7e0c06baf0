"""From hidden states to outputs, and from outputs to stored values."""
