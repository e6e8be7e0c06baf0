"""`load`: vectors that are in Parquet already, into any destination, with the promises of `embed` and no model.

Enters: a folder that embedctl wrote, or tables of any origin (see `vectors`). Leaves: the destination finished. A folder's
windows, ids, chunks, books, dead letters and plans are carried over as they are, so that the destination is the one that
the same job would have made there. Refused: an unfinished folder, a destination of another job, a source that changed.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embedctl import plan as plans
from embedctl.codec import dead_from_json
from embedctl.errors import Locked, PlanMismatch, SourceChanged, UsageError
from embedctl.events import Listener, Summary
from embedctl.job import finalise as ending
from embedctl.job import vectors
from embedctl.job.carrying import Folder
from embedctl.job.destination import Destination, open_destination
from embedctl.job.execution import Execution
from embedctl.job.loading import Loading
from embedctl.job.signals import obeyed
from embedctl.job.summary import skipped_summary, summary_of
from embedctl.ledger import locks
from embedctl.ledger.segments import Ledger
from embedctl.plan import Plan
from embedctl.sources.files import discover, snapshot
from embedctl.spec import JobSpec
from embedctl.stages.flow import Halt, Meter
from embedctl.storage import STATE, LocalStorage
