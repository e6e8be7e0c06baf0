"""Finds the files of a corpus and notices when one changes.

Enters: what the user typed (files, folders, globs, `-`). Leaves: `SourceFile` records in a fixed order, one a file.
Refused: what is missing, unreadable, of an unknown format, or an output of embedctl itself.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embedctl.errors import SourceChanged, SourceError, UsageError
from embedctl.records import SourceFile

STDIN = "-"
FORMAT_BY_EXTENSION = {
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".csv": "csv", ".tsv": "tsv",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".arrows": "arrow",
    ".txt": "text", ".text": "text", ".md": "text",
}  # fmt: skip
FILE = "file"
FILE_EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".jp2",
    ".wav", ".flac", ".ogg", ".mp3", ".aiff",
)  # fmt: skip
"""Files that are a row themselves: where they are named, or where a folder holds nothing else that is known."""
COMPRESSION_BY_EXTENSION = {".gz": "gz", ".zst": "zst", ".bz2": "bz2"}
BINARY_FORMATS = frozenset({"parquet", "arrow", FILE})
_STATE = ".embedctl"


def discover(inputs: Sequence[str], format: str | None = None) -> list[SourceFile]:
    """Every file that `inputs` name, sorted by URI, each once; URIs are relative to the deepest common folder.

    Folders are searched recursively, past hidden names, names that begin with `_`, `*.crc` and embedctl's outputs.

    :param format: forces the format of every file; None goes by extension.
    :raises UsageError: no input, `-` among others, an unknown extension, an embedctl output as input.
    :raises SourceError: missing, unreadable, not a regular file, or nothing found.
    """
    if not inputs:
        raise UsageError("no input given", hint="embedctl embed corpus.parquet")
    if STDIN in inputs:
        return [_standard_input(inputs, format)]
    found: dict[str, Path] = {}
    for text in inputs:
        for path in _expand(text, format):
            found.setdefault(os.path.realpath(path), path)
    paths = list(found.values())
    root = Path(os.path.commonpath([p.parent for p in paths]))
    named = sorted((_uri(p, root), p) for p in paths)
    return [_describe(i, uri, path, format) for i, (uri, path) in enumerate(named)]


def snapshot(files: Sequence[SourceFile]) -> str:
    """SHA-256, in hex, of the sorted (uri, size, version): equal snapshots mean equal content, as far as stat tells."""
    digest = hashlib.sha256()
    for uri, size_bytes, version in sorted((f.uri, f.size_bytes, f.version) for f in files):
        digest.update(f"{len(uri.encode())}:{uri}:{size_bytes}:{version}\n".encode())
    return digest.hexdigest()


def is_untouched(before: SourceFile | None, now: SourceFile) -> bool:
    """Whether a file need not be read again: what stat tells is what it told then, down to when it was last touched."""
    if before is None or (before.size_bytes, before.version) != (now.size_bytes, now.version):
        return False
    return not before.touched or before.touched == now.touched


def check_unchanged(file: SourceFile) -> None:
    """Compare the file with what the plan saw. Standard input always passes.

    :raises SourceChanged: gone, or its size or modification time differs.
    """
    if file.path == STDIN:
        return
    try:
        now = os.stat(file.path)
    except OSError as exc:
        raise SourceChanged(
            f"{file.uri}: was here when the job was planned, now: {exc.strerror}",
            hint="put the file back, or start a new job with another --to",
        ) from exc
    if now.st_size != file.size_bytes:
        what = f"its size went from {file.size_bytes} to {now.st_size} bytes"
    elif str(now.st_mtime_ns) != file.version:
        what = f"its modification time went from {file.version} to {now.st_mtime_ns} ns"
    else:
        return
    raise SourceChanged(
        f"{file.uri}: changed since the job was planned: {what}",
        hint="put the old file back, or start a new job with another --to",
    )


def split_extension(name: str) -> tuple[str | None, str | None]:
    """(format, compression) by extension; None where unknown or absent."""
    stem, last = os.path.splitext(name.lower())
    compression = COMPRESSION_BY_EXTENSION.get(last)
    if compression is not None:
        last = os.path.splitext(stem)[1]
    return FORMAT_BY_EXTENSION.get(last), compression


def _standard_input(inputs: Sequence[str], format: str | None) -> SourceFile:
    if len(inputs) > 1:
        raise UsageError("-: standard input cannot be mixed with other inputs", hint="give - alone, or only files")
    if format in BINARY_FORMATS:
        raise UsageError(
            f"--format: {format} cannot be read from standard input; allowed: jsonl, csv, tsv, text",
            hint="save it to a file first",
        )
    return SourceFile(
        index=0, uri=STDIN, path=STDIN, format=format or "jsonl", compression=None, size_bytes=0, version=""
    )


def _expand(text: str, format: str | None) -> list[Path]:
    if "://" in text:
        raise UsageError(f"{text}: only local files can be read by this version", hint="copy the files here first")
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if path.is_dir():
        return _folder(text, path, format)
    if os.path.lexists(path):
        _check_explicit(text, path, format)
        return [path]
    if glob.has_magic(text):
        return _glob(text, format)
    near = _nearest(text, path)
    raise SourceError(f"{text}: no such file or folder", hint=f"did you mean {near}?" if near else None)


def _folder(text: str, folder: Path, format: str | None) -> list[Path]:
    if _is_output(folder):
        raise UsageError(f"{text}: is an output of embedctl, not a corpus", hint="give the corpus it was made from")
    walk = _Walk()
    every = list(walk.files(folder))
    paths = [p for p in every if _readable_format(p.name, format)] or [p for p in every if _is_row(p.name)]
    if paths:
        return paths
    seen = f" among {walk.seen} files" if walk.seen else ""
    raise SourceError(
        f"{text}: no file of a known format{seen} in this folder; known: {_extensions()}",
        hint="--format says what the files are" if walk.seen else None,
    )


def _glob(text: str, format: str | None) -> list[Path]:
    matches = sorted(Path(os.path.abspath(m)) for m in glob.glob(os.path.expanduser(text), recursive=True))
    files = [m for m in matches if not m.is_dir() and not _inside_output(m)]
    paths = [p for p in files if not _skipped(p.name) and (_readable_format(p.name, format) or _is_row(p.name))]
    if "**" not in text:
        for folder in (m for m in matches if m.is_dir() and not _inside_output(m) and not _skipped(m.name)):
            paths += [p for p in _Walk().files(folder) if _readable_format(p.name, format)]
    if paths:
        return paths
    if files:
        raise SourceError(
            f"{text}: matches {len(files)} files, none of a known format; known: {_extensions()}",
            hint="--format says what the files are",
        )
    raise SourceError(f"{text}: matches no file", hint="quote the pattern, and look at it with ls")


@dataclass(slots=True)
class _Walk:
    """A recursive search that survives links in a circle."""

    seen: int = 0
    visited: set[str] = field(default_factory=set)

    def files(self, folder: Path) -> Iterator[Path]:
        real = os.path.realpath(folder)
        if real in self.visited or _is_output(folder):
            return
        self.visited.add(real)
        try:
            entries = sorted(os.scandir(folder), key=lambda e: e.name)
        except OSError as exc:
            raise SourceError(f"{folder}: cannot be listed: {exc.strerror}", hint=f"chmod u+rx {folder}") from exc
        for entry in entries:
            if _skipped(entry.name):
                continue
            if entry.is_dir():
                yield from self.files(folder / entry.name)
            elif entry.is_file() or entry.is_symlink():
                self.seen += 1
                yield folder / entry.name


def _skipped(name: str) -> bool:
    return name.startswith((".", "_")) or name.endswith(".crc")


def _is_output(folder: Path) -> bool:
    return (folder / _STATE).is_dir() or folder.name == _STATE


def _inside_output(path: Path) -> bool:
    return _STATE in path.parts or any((p / _STATE).is_dir() for p in path.parents)


def _readable_format(name: str, format: str | None) -> bool:
    return format is not None or split_extension(name)[0] is not None


def _is_row(name: str) -> bool:
    return name.lower().endswith(FILE_EXTENSIONS)


def _check_explicit(text: str, path: Path, format: str | None) -> None:
    if _STATE in path.parts:
        raise UsageError(f"{text}: is embedctl's own state, not a corpus", hint="give the corpus it was made from")
    if not _readable_format(path.name, format) and not _is_row(path.name):
        raise UsageError(
            f"{text}: unknown extension; known: {_extensions()}", hint="--format jsonl (or what the file is)"
        )


def _extensions() -> str:
    return f"{' '.join(FORMAT_BY_EXTENSION)} (and {' '.join(COMPRESSION_BY_EXTENSION)} after a text format)"


def _nearest(text: str, path: Path) -> str | None:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1)
    return os.path.join(os.path.dirname(text), near[0]) if near else None


def _uri(path: Path, root: Path) -> str:
    uri = path.relative_to(root).as_posix()
    try:
        uri.encode()
    except UnicodeEncodeError as exc:
        raise SourceError(f"{uri!a}: the file's name is not valid UTF-8", hint="rename the file") from exc
    return uri


def _describe(index: int, uri: str, path: Path, format: str | None) -> SourceFile:
    named_format, compression = split_extension(path.name)
    chosen = format or named_format or FILE
    if compression is not None and chosen in BINARY_FORMATS:
        raise UsageError(
            f"{path}: a {chosen} file cannot be read in {compression} compression; it carries its own",
            hint="decompress it first",
        )
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path}: not a regular file", hint="to read a stream: embedctl embed - < STREAM")
        with open(path, "rb"):
            pass
    except OSError as exc:
        raise SourceError(f"{path}: cannot be read: {exc.strerror}", hint=f"ls -l {path}") from exc
    if status.st_size == 0 and chosen in BINARY_FORMATS - {FILE}:
        raise SourceError(f"{path}: is empty (0 bytes), not a {chosen} file", hint="write it again, or leave it out")
    return SourceFile(
        index=index,
        uri=uri,
        path=str(path),
        format=chosen,
        compression=compression,
        size_bytes=status.st_size,
        version=str(status.st_mtime_ns),
        touched=status.st_ctime_ns,
    )
