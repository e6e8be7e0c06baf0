"""Who is told of a run that nobody watches: log, metrics file, collector, webhook. They decide nothing."""
