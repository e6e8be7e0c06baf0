"""Leases on a destination: who may plan, run which slices, finalise.

All leases stand in one object, `.embedctl/locks.json`, changed only by compare-and-swap. A lease names its owner
(nonce, host, boot id, process id and start time). An owner on this host that is gone is replaced at once; one on
another host when it has not renewed while we watched for `TAKEOVER_S` (no clocks are compared). Refuses with `Locked`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from embedctl.errors import Locked
from embedctl.events import Listener
from embedctl.storage import STATE, Storage, etag_of

LOCKS = f"{STATE}/locks.json"
RENEW_S = 20.0
TAKEOVER_S = 90.0
_POLL_S = 1.0

_FIELDS = ("host", "boot", "pid", "start", "nonce", "owner", "beat", "names", "slices")

Held = dict[str, Any]


class Lease:
    """A held lease. Renewed by a thread of its own; `check` before every ledger write; `release` at the end."""

    def __init__(self, storage: Storage, nonce: str) -> None:
        self._storage = storage
        self.nonce = nonce
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """:raises Locked: the lease was taken over by another run."""
        check(self._storage, self.nonce)

    def release(self) -> None:
        """Give the lease back; twice is fine."""
        self._done.set()
        _change(self._storage, lambda leases: [h for h in leases if h["nonce"] != self.nonce])

    def _renew(self) -> None:
        while not self._done.wait(RENEW_S):
            with contextlib.suppress(Exception):  # a missed renewal is made up by the next; check() is what guards
                _change(self._storage, self._renewed)

    def _renewed(self, leases: list[Held]) -> list[Held]:
        return [{**h, "beat": h["beat"] + 1} if h["nonce"] == self.nonce else h for h in leases]


def release_all(leases: Iterable[Lease]) -> None:
    """Give all of them back."""
    for held in leases:
        held.release()


def check(storage: Storage, nonce: str) -> None:
    """:raises Locked: no lease of this nonce stands any more."""
    if not any(held["nonce"] == nonce for held in _read(storage)[0]):
        raise Locked(
            f"{storage.uri}: another run took over this one's lock",
            hint=f"see who runs with: embedctl status {storage.uri}",
        )


@contextlib.contextmanager
def lease(
    storage: Storage,
    *,
    names: Iterable[str] = (),
    slices: Iterable[int] = (),
    wait: bool = False,
    listener: Listener,
) -> Iterator[Lease]:
    """Hold the named scopes and slices for the length of the block.

    :raises Locked: a living owner holds one of them and `wait` is false.
    """
    held = acquire(storage, names=names, slices=slices, wait=wait, listener=listener)
    try:
        yield held
    finally:
        with contextlib.suppress(Exception):  # a lease left behind is taken over, since its owner is gone
            held.release()


def acquire(
    storage: Storage,
    *,
    names: Iterable[str] = (),
    slices: Iterable[int] = (),
    wait: bool = False,
    listener: Listener,
) -> Lease:
    """As `lease`, without the block."""
    mine: Held = {**myself(), "nonce": os.urandom(6).hex(), "owner": storage.owner, "beat": 0}
    mine |= {"names": sorted(names), "slices": _ranges(slices)}
    watched: dict[str, tuple[int, float]] = {}
    told = False
    while True:
        leases, etag = _read(storage)
        blocking = [h for h in leases if _overlap(h, mine) and not _gone(h, watched)]
        if not blocking:
            gone = [h for h in leases if _overlap(h, mine)]
            for owner in gone:
                listener.note(f"took over the lock of a run that is gone ({_who(owner)})")
            content = _dump([h for h in leases if h not in gone] + [mine])
            if storage.replace_if_match(LOCKS, content, etag):
                return Lease(storage, mine["nonce"])
            continue
        if not wait:
            raise Locked(
                f"{storage.uri}: another run holds it ({_who(blocking[0])})",
                hint="wait for it with --if-locked wait, which takes over an owner on another host that is silent for "
                f"{TAKEOVER_S:.0f} s; or step aside with --if-locked skip",
            )
        if not told:
            listener.note(f"waiting for {_who(blocking[0])}")
            told = True
        time.sleep(_POLL_S)


def holders(storage: Storage) -> list[Held]:
    """The leases that stand now, each with `alive`: True, False, or None when it cannot be told from here."""
    return [{**h, "alive": alive(h)} for h in _read(storage)[0]]


def live_owners(storage: Storage) -> frozenset[str]:
    """Storage owners whose lease may be alive."""
    return frozenset(h["owner"] for h in _read(storage)[0] if alive(h) is not False)


def _read(storage: Storage) -> tuple[list[Held], str | None]:
    content = storage.read(LOCKS)
    try:
        leases: list[Held] = (
            [{k: held[k] for k in _FIELDS} for held in json.loads(content)["leases"]] if content else []
        )
    except (ValueError, KeyError, TypeError):
        leases = []  # an unreadable lock file protects nobody; ledger writes are put-if-absent all the same
    return leases, etag_of(content)


def _change(storage: Storage, change: Any) -> None:
    while True:
        leases, etag = _read(storage)
        changed = change(leases)
        if changed == leases or storage.replace_if_match(LOCKS, _dump(changed), etag):
            return


def _dump(leases: list[Held]) -> bytes:
    return json.dumps({"version": 1, "leases": leases}, indent=1).encode()


def _overlap(one: Held, two: Held) -> bool:
    if set(one["names"]) & set(two["names"]):
        return True
    return any(a < d and c < b for a, b in one["slices"] for c, d in two["slices"])


def _gone(held: Held, watched: dict[str, tuple[int, float]]) -> bool:
    known = alive(held)
    if known is not None:
        return not known
    beat, since = watched.setdefault(held["nonce"], (held["beat"], time.monotonic()))
    if beat != held["beat"]:
        watched[held["nonce"]] = (held["beat"], time.monotonic())
        return False
    return time.monotonic() - since > TAKEOVER_S


def alive(held: Held) -> bool | None:
    """Whether the process that `myself` described lives; None when it is on another host."""
    me = myself()
    if held["host"] != me["host"]:
        return None
    if held["boot"] != me["boot"]:
        return False
    return bool(_start_of(held["pid"]) == held["start"])


def myself() -> Held:
    """What tells this process from every other: host, boot, pid, start."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot_id(), "pid": pid, "start": _start_of(pid)}


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def _start_of(pid: int) -> str | None:
    """The process's start time, which tells a reused process id; None when there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "alive"


def _who(held: Held) -> str:
    return f"process {held['pid']} on {held['host']}"


def _ranges(slices: Iterable[int]) -> list[list[int]]:
    """Ascending half-open ranges: [0, 1, 2, 7] to [[0, 3], [7, 8]]."""
    out: list[list[int]] = []
    for number in sorted(slices):
        if out and out[-1][1] == number:
            out[-1][1] += 1
        else:
            out.append([number, number + 1])
    return out
