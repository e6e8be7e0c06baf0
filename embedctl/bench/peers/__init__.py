"""One module a library: `load(settings)` gives an encoder of texts. Each runs in an environment that holds its library
and need not hold this package, so a peer imports nothing of it (`own` excepted)."""
