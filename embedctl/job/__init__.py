"""A job from its spec to its summary: ties plan, leases, pipeline and finalising. What the command line calls."""

from embedctl.job.report import dead_letters, plan, status
from embedctl.job.retry import retry
from embedctl.job.run import embed
from embedctl.job.sync import sync

__all__ = ["dead_letters", "embed", "plan", "retry", "status", "sync"]
