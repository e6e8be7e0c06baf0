"""Many workers over one plan."""
