"""Named places where a test can kill the process: `EMBEDCTL_FAILPOINT=name` or `name:k` for the k-th pass.

Costs one comparison where the variable is not set. The names are the commit boundaries of the design.
"""

from __future__ import annotations

import os
import signal

_SPEC = os.environ.get("EMBEDCTL_FAILPOINT")
_NAME, _, _COUNT = (_SPEC or "").partition(":")
_left = int(_COUNT or 1)


def hit(name: str) -> None:
    """Kill this process with SIGKILL when the environment asks for it here."""
    global _left
    if _SPEC is None or name != _NAME:
        return
    _left -= 1
    if _left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
