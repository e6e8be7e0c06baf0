"""A model in one file, for a machine that reaches no hub: packed with checksums, unpacked only when all of them hold.

Enters: a `ModelFolder`, or a bundle. Leaves: a bundle (a plain tar, the same bytes for the same model), or a folder
that appears whole or not at all. Refused: a bundle that is damaged, cut off, or names files outside its folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, Any

from embedctl.errors import ModelError, UsageError
from embedctl.models.fingerprint import SETTINGS, file_sha256
from embedctl.models.folder import ModelFolder

FORMAT = 1
MANIFEST = "embedctl-model.json"
_TOLD = ("README*", "LICENSE*", "NOTICE*", "*.index.json", "preprocessor_config.json", "processor_config.json")
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What a bundle says of itself. files: path in the folder -> (bytes, sha256)."""

    name: str
    fingerprint: str
    card: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


def pack(folder: ModelFolder, target: Path) -> Bundle:
    """Write the model's bundle, whole or not at all.

    :raises UsageError: a fake model, or `target` exists. :raises ModelError: a file cannot be read or written.
    """
    if folder.root is None:
        raise UsageError(f"{folder.name}: it is no folder, so there is nothing to pack")
    if target.exists():
        raise UsageError(f"{target} exists already", hint="choose another file with --out")
    bundle = _described(folder, folder.root)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as out:
            with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
                manifest = json.dumps(_to_json(bundle), indent=1, sort_keys=True).encode()
                tar.addfile(_entry(MANIFEST, len(manifest)), io.BytesIO(manifest))
                for path, (size, _) in bundle.files.items():
                    with (folder.root / path).open("rb") as file:
                        tar.addfile(_entry(f"model/{path}", size), file)
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(target)
    except OSError as exc:
        raise ModelError(f"{target}: cannot be written: {exc.strerror or exc}") from exc
    finally:
        scratch.unlink(missing_ok=True)
    return bundle


def unpack(source: Path, parent: Path) -> tuple[Bundle, Path]:
    """The bundle's folder under `parent`, named as the model. The same bundle again finds it there.

    :raises ModelError: no bundle, damaged, or another model's folder is in the way.
    """
    try:
        with tarfile.open(source) as tar:
            bundle = _manifest(tar, source)
            target = parent / bundle.name
            if target.exists():
                _check_same(bundle, target)
                return bundle, target
            parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", dir=parent))
            try:
                _extract(tar, bundle, scratch, source)
                scratch.chmod(0o755)
                scratch.replace(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    except tarfile.TarError as exc:
        raise ModelError(f"{source}: not a bundle, or cut off ({exc})", hint="embedctl models pack MODEL") from exc
    except OSError as exc:
        raise ModelError(f"{source}: cannot be unpacked: {exc.strerror or exc}") from exc
    return bundle, target


def _described(folder: ModelFolder, root: Path) -> Bundle:
    wanted = {p for p in root.rglob("*") if p.is_file() and _belongs(p.relative_to(root))} | set(folder.weights)
    names = sorted(p.relative_to(root).as_posix() for p in wanted)
    try:
        files = {name: ((root / name).stat().st_size, file_sha256(root / name)) for name in names}
    except OSError as exc:
        raise ModelError(f"{root}: cannot be read: {exc.strerror}") from exc
    card = {"architecture": folder.architecture, "gives": list(folder.kinds), "max_seq_length": folder.max_seq_length}
    name = folder.name.rpartition("/")[2]
    return Bundle(name=name, fingerprint=folder.fingerprint(), card=card, files=files)


def _belongs(path: Path) -> bool:
    if any(part.startswith((".", "__")) for part in path.parts) or path.parts[0] in ("onnx", "openvino", "coreml"):
        return False
    return any(fnmatch(path.name, pattern) for pattern in (*SETTINGS, *_TOLD, "*.safetensors", "config.json", "*.txt"))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    """No time, no owner: a bundle is its contents."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def _manifest(tar: tarfile.TarFile, source: Path) -> Bundle:
    first = tar.next()
    file = tar.extractfile(first) if first is not None and first.name == MANIFEST and first.isfile() else None
    if file is None:
        raise ModelError(f"{source}: not a bundle of embedctl", hint="embedctl models pack MODEL --out FILE")
    try:
        obj = json.loads(file.read())
        if obj["format"] > FORMAT:
            raise ModelError(f"{source}: packed by a newer embedctl", hint="pip install --upgrade embedctl")
        files = {str(path): (int(size), str(sha256)) for path, (size, sha256) in obj["files"].items()}
        bundle = Bundle(name=str(obj["name"]), fingerprint=str(obj["fingerprint"]), card=obj["card"], files=files)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{source}: its list of files is damaged ({exc})") from exc
    unsafe = [p for p in (bundle.name, *files) if PurePosixPath(p).is_absolute() or ".." in PurePosixPath(p).parts]
    if unsafe or "/" in bundle.name or not bundle.name:
        raise ModelError(f"{source}: names a place outside its folder: {(unsafe or [bundle.name])[0]!r}")
    return bundle


def _extract(tar: tarfile.TarFile, bundle: Bundle, folder: Path, source: Path) -> None:
    missing = dict(bundle.files)
    for entry in tar:
        path = entry.name.removeprefix("model/")
        if entry.name == MANIFEST:
            continue
        if not entry.isfile() or path == entry.name or path not in missing:
            raise ModelError(f"{source}: holds {entry.name!r}, which its list of files does not")
        file = tar.extractfile(entry)
        assert file is not None
        size, sha256 = missing.pop(path)
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if entry.size != size or _copied(file, folder / path) != sha256:
            raise ModelError(f"{source}: {path} is damaged (sha256 differs)", hint="copy the bundle again")
    if missing:
        raise ModelError(f"{source}: {next(iter(missing))} is missing", hint="copy the bundle again")


def _copied(file: IO[bytes], target: Path) -> str:
    """sha256 of what was written."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        while block := file.read(_CHUNK):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _check_same(bundle: Bundle, folder: Path) -> None:
    for path, (_, sha256) in bundle.files.items():
        if not (folder / path).is_file() or file_sha256(folder / path) != sha256:
            raise ModelError(
                f"{folder}: is there already, and its {path} is not the bundle's",
                hint="choose another folder with --to",
            )


def _to_json(bundle: Bundle) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "name": bundle.name,
        "fingerprint": bundle.fingerprint,
        "card": dict(bundle.card),
        "files": {path: list(told) for path, told in bundle.files.items()},
    }
