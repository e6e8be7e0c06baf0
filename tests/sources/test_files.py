"""Finding files: order, names, formats, what is refused and how it is said."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from embedctl.errors import SourceChanged, SourceError, UsageError
from embedctl.sources.files import check_unchanged, discover, snapshot, split_extension


def touch(path: Path, content: bytes = b"x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.jsonl", "a.txt", "sub/c.csv.gz", "sub/deep/d.tsv", "_SUCCESS", "_tmp/x.jsonl", ".hidden/y.jsonl"):
        touch(tmp_path / name)
    touch(tmp_path / ".z.jsonl")
    touch(tmp_path / "b.jsonl.crc")
    touch(tmp_path / "readme.pdf")
    touch(tmp_path / "out" / ".embedctl" / "plan.json")
    touch(tmp_path / "out" / "g0001-00000-000000.parquet")
    return tmp_path


def test_a_folder_is_searched_past_hidden_names_and_outputs(tree: Path) -> None:
    files = discover([str(tree)])
    assert [f.uri for f in files] == ["a.txt", "b.jsonl", "sub/c.csv.gz", "sub/deep/d.tsv"]
    assert [f.index for f in files] == [0, 1, 2, 3]
    assert [(f.format, f.compression) for f in files] == [
        ("text", None),
        ("jsonl", None),
        ("csv", "gz"),
        ("tsv", None),
    ]


def test_uris_are_relative_to_the_deepest_common_folder(tree: Path) -> None:
    assert [f.uri for f in discover([str(tree / "sub")])] == ["c.csv.gz", "deep/d.tsv"]
    assert [f.uri for f in discover([str(tree / "b.jsonl")])] == ["b.jsonl"]


def test_the_same_file_through_two_inputs_or_a_link_comes_once(tree: Path) -> None:
    (tree / "link.jsonl").symlink_to(tree / "b.jsonl")
    files = discover([str(tree / "b.jsonl"), str(tree / "*.jsonl"), str(tree / "link.jsonl"), str(tree)])
    assert sum(f.format == "jsonl" for f in files) == 1


def test_links_in_a_circle_end(tree: Path) -> None:
    (tree / "sub" / "loop").symlink_to(tree)
    assert len(discover([str(tree)])) == 4


@pytest.mark.parametrize(
    ("pattern", "uris"),
    [
        ("*.jsonl", ["b.jsonl"]),
        ("**/*.tsv", ["d.tsv"]),
        ("s*", ["c.csv.gz", "deep/d.tsv"]),
        ("[ab].*", ["a.txt", "b.jsonl"]),
    ],
)
def test_globs(tree: Path, pattern: str, uris: list[str]) -> None:
    assert [f.uri for f in discover([str(tree / pattern)])] == uris


def test_a_name_with_glob_letters_is_a_name_first(tmp_path: Path) -> None:
    touch(tmp_path / "part[1].jsonl")
    assert [f.uri for f in discover([str(tmp_path / "part[1].jsonl")])] == ["part[1].jsonl"]


def test_order_does_not_depend_on_the_order_of_inputs(tree: Path) -> None:
    a = discover([str(tree / "sub"), str(tree / "b.jsonl")])
    b = discover([str(tree / "b.jsonl"), str(tree / "sub")])
    assert a == b
    assert snapshot(a) == snapshot(list(reversed(a)))


def test_a_missing_file_names_the_nearest(tree: Path) -> None:
    with pytest.raises(SourceError, match=r"c\.jsonl: no such file or folder") as caught:
        discover([str(tree / "c.jsonl")])
    assert caught.value.hint == f"did you mean {tree / 'b.jsonl'}?"


@pytest.mark.parametrize(
    ("name", "format", "error", "message"),
    [
        ("readme.pdf", None, UsageError, "readme.pdf: unknown extension; known: .parquet"),
        ("*.nope", None, SourceError, "matches no file"),
        ("*.pdf", None, SourceError, "matches 1 files, none of a known format"),
        ("_tmp/../out", None, UsageError, "is an output of embedctl"),
        (".embedctl/plan.json", None, UsageError, "is embedctl's own state"),
        ("empty", None, SourceError, "no file of a known format in this folder"),
        ("nothing", None, SourceError, "no file of a known format among 1 files"),
        ("b.jsonl.gz", "parquet", UsageError, "cannot be read in gz compression"),
        ("pipe", "jsonl", SourceError, "not a regular file"),
        ("zero.parquet", None, SourceError, "is empty (0 bytes), not a parquet file"),
    ],
)
def test_refusals(tree: Path, name: str, format: str | None, error: type[Exception], message: str) -> None:
    (tree / "empty").mkdir()
    touch(tree / "nothing" / "x.pdf")
    touch(tree / ".embedctl2")
    touch(tree / "b.jsonl.gz")
    touch(tree / "zero.parquet", b"")
    os.mkfifo(tree / "pipe")
    target = tree / "out" / name if name.startswith(".embedctl") else tree / name
    with pytest.raises(error) as caught:
        discover([str(target)], format)
    assert message in str(caught.value)


def test_a_forced_format_takes_every_file(tree: Path) -> None:
    assert {f.format for f in discover([str(tree)], "text")} == {"text"}
    assert len(discover([str(tree)], "text")) == 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(tree: Path) -> None:
    (tree / "b.jsonl").chmod(0)
    with pytest.raises(SourceError, match=r"b\.jsonl: cannot be read: Permission denied"):
        discover([str(tree)])


def test_a_remote_address_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"s3://b/k\.parquet: only local files"):
        discover(["s3://b/k.parquet"])


def test_standard_input_stands_alone(tree: Path) -> None:
    (file,) = discover(["-"])
    assert (file.uri, file.path, file.format) == ("-", "-", "jsonl")
    assert discover(["-"], "csv")[0].format == "csv"
    with pytest.raises(UsageError, match="cannot be mixed"):
        discover(["-", str(tree)])
    with pytest.raises(UsageError, match="parquet cannot be read from standard input"):
        discover(["-"], "parquet")


def test_a_change_is_noticed_and_told(tree: Path) -> None:
    path = tree / "b.jsonl"
    (file,) = discover([str(path)])
    check_unchanged(file)
    before = snapshot([file])
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged, match=r"b\.jsonl: changed since the job was planned: its modification time went"):
        check_unchanged(file)
    assert snapshot(discover([str(path)])) != before
    path.write_bytes(b"longer\n")
    with pytest.raises(SourceChanged, match="its size went from 2 to 7 bytes"):
        check_unchanged(file)
    path.unlink()
    with pytest.raises(SourceChanged, match="now: No such file or directory"):
        check_unchanged(file)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.PARQUET", ("parquet", None)),
        ("a.jsonl.zst", ("jsonl", "zst")),
        ("a.gz", (None, "gz")),
        ("a", (None, None)),
        ("v1.2.ndjson.bz2", ("jsonl", "bz2")),
        (".jsonl", (None, None)),
    ],
)
def test_extensions(name: str, expected: tuple[str | None, str | None]) -> None:
    assert split_extension(name) == expected
