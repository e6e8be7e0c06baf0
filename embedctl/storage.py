"""One face for files and object stores, and the only place that fsyncs.

Names are relative, with `/`. Nothing here renames over or appends to what a reader can see: an object appears whole
(`put_if_absent`), is swapped whole against a known version (`replace_if_match`), or is deleted. That is what
object stores offer too. Every operating system error leaves as a `SinkError` that says what to do.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from embedctl import failpoints
from embedctl.errors import SinkError

STATE = ".embedctl"
SCRATCH = f"{STATE}/tmp"
_GUARD = f"{STATE}/guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One stored object: its name relative to the root, its size in bytes."""

    name: str
    size_bytes: int


class Storage(Protocol):
    """What the ledger and file-like sinks need of a place to keep bytes."""

    uri: str
    owner: str
    """A random name for this writer: its scratch folder, its ledger segments, its leases."""

    def list(self, folder: str) -> list[Entry]:
        """Objects directly in `folder`, sorted by name; empty when it does not exist."""
        ...

    def read(self, name: str) -> bytes | None:
        """The whole object, or None when absent."""
        ...

    def read_range(self, name: str, begin: int, length: int) -> bytes:
        """`length` bytes from `begin`; shorter at the end."""
        ...

    def put_if_absent(self, name: str, content: bytes | Path, *, mode: int = 0o644) -> bool:
        """Publish durably and whole; False when the name is taken. A Path must come from `scratch` and is consumed."""
        ...

    def replace_if_match(self, name: str, content: bytes, etag: str | None, *, mode: int = 0o644) -> bool:
        """Swap durably when the current content's etag is `etag` (None: absent); False otherwise."""
        ...

    def delete(self, name: str) -> None:
        """Remove; absent is fine."""
        ...

    def scratch(self, name: str) -> Path:
        """A local path to build a file at, in a folder of this owner's own."""
        ...

    def drop_scratch(self, live_owners: Callable[[], frozenset[str]]) -> None:
        """Remove the scratch of owners that are gone; `owner.1` is the scratch of one of `owner`'s own processes."""
        ...


def etag_of(content: bytes | None) -> str | None:
    """The version that `replace_if_match` compares: a hash of the content, None for an absent object."""
    return None if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()


class LocalStorage:
    """A folder on a local or mounted file system."""

    def __init__(self, root: Path, uri: str | None = None) -> None:
        """`uri` names what this keeps the state of in messages; None: the folder itself."""
        self.root = root
        self.uri = uri or str(root)
        self.owner = os.urandom(6).hex()
        self._made: set[Path] = set()

    def list(self, folder: str) -> list[Entry]:
        with _told(self.root / folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with os.scandir(self.root / folder) as found:
                prefix = f"{folder}/" if folder else ""
                files = [Entry(name=prefix + e.name, size_bytes=e.stat().st_size) for e in found if e.is_file()]
            return sorted(files, key=lambda e: e.name)
        return []

    def read(self, name: str) -> bytes | None:
        with _told(self.root / name):
            try:
                return (self.root / name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def read_range(self, name: str, begin: int, length: int) -> bytes:
        with _told(self.root / name), (self.root / name).open("rb") as file:
            file.seek(begin)
            return file.read(length)

    def put_if_absent(self, name: str, content: bytes | Path, *, mode: int = 0o644) -> bool:
        target = self.root / name
        with _told(target):
            staged = self._stage(content, target, mode)
            failpoints.hit("staged")
            try:
                published = self._link(staged, target)
            finally:
                staged.unlink(missing_ok=True)
            _sync_folder(target.parent)
            return published

    def replace_if_match(self, name: str, content: bytes, etag: str | None, *, mode: int = 0o644) -> bool:
        target = self.root / name
        with _told(target), self._guarded():
            if etag_of(self.read(name)) != etag:
                return False
            staged = self._stage(content, target, mode)
            staged.replace(target)
            _sync_folder(target.parent)
            return True

    def delete(self, name: str) -> None:
        with _told(self.root / name):
            (self.root / name).unlink(missing_ok=True)

    def scratch(self, name: str) -> Path:
        folder = self.root / SCRATCH / self.owner
        with _told(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / name.replace("/", "_")

    def drop_own_scratch(self) -> None:
        """At the end of a run: what it left in its scratch, which is nothing unless it failed."""
        shutil.rmtree(self.root / SCRATCH / self.owner, ignore_errors=True)

    def drop_scratch(self, live_owners: Callable[[], frozenset[str]]) -> None:
        with contextlib.suppress(FileNotFoundError), self._guarded():
            living = live_owners() | {self.owner}  # asked under the guard, under which every lease is taken
            for folder in (self.root / SCRATCH).iterdir():
                if folder.name.partition(".")[0] not in living:
                    shutil.rmtree(folder, ignore_errors=True)

    def link_tree(self, names: Iterable[str], folder: str) -> None:
        """Make `folder` hold hard links to `names` (by their last part); what is there already stays."""
        where = self.root / folder
        with _told(where):
            where.mkdir(parents=True, exist_ok=True)
            for name in names:
                with _told(self.root / name), contextlib.suppress(FileExistsError):
                    os.link(self.root / name, where / Path(name).name)
            _sync_folder(where)

    def point(self, name: str, target: str) -> None:
        """Switch the symbolic link `name` to `target` (relative to its folder) atomically."""
        link, staged = self.root / name, self.root / f"{name}.next"
        with _told(link), self._guarded():
            staged.unlink(missing_ok=True)
            staged.symlink_to(target)
            staged.replace(link)
            _sync_folder(link.parent)

    def _stage(self, content: bytes | Path, target: Path, mode: int) -> Path:
        self._make_folder(target.parent)
        if isinstance(content, Path):
            staged = content
        else:
            staged = self.scratch(f"{target.name}.{os.urandom(4).hex()}")
            try:
                with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
                    out.write(content)
            except OSError:
                staged.unlink(missing_ok=True)
                raise
        with staged.open("rb") as file:
            os.fsync(file.fileno())
        return staged

    def _link(self, staged: Path, target: Path) -> bool:
        try:
            os.link(staged, target)
        except FileExistsError:
            return False
        except OSError as exc:
            if exc.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            with self._guarded():  # a file system without hard links: the guard makes check and rename one step
                if target.exists():
                    return False
                staged.replace(target)
        return True

    def _make_folder(self, folder: Path) -> None:
        if folder not in self._made:
            folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(folder.parent)
            self._made.add(folder)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        guard = self.root / _GUARD
        guard.parent.mkdir(parents=True, exist_ok=True)
        with guard.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_ADVICE = {
    errno.ENOSPC: ("the disk is full", "free some space, then run the same command again: it goes on where it stopped"),
    errno.EDQUOT: (
        "the quota is used up",
        "free some space, then run the same command again: it goes on where it stopped",
    ),
    errno.EROFS: ("the file system is read-only", "choose another destination with --to"),
    errno.EACCES: ("permission denied", "choose another destination with --to, or change the folder's permissions"),
    errno.EPERM: ("not permitted", "choose another destination with --to, or change the folder's permissions"),
    errno.EISDIR: ("there is a folder of this name", "choose another destination with --to"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "choose another destination with --to"),
    errno.EEXIST: ("there is a file of this name", "choose another destination with --to"),
}  # fmt: skip


def sink_error(path: Path | str, exc: OSError) -> SinkError:
    """The error a user sees for a failed write or read of the destination."""
    what, hint = _ADVICE.get(exc.errno or 0, (exc.strerror or str(exc), None))
    return SinkError(f"{path}: {what}", hint=hint)


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise sink_error(path, exc) from exc
