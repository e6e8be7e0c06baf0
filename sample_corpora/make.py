"""Writes every file of this folder again, the same bytes each time under the same Python and pyarrow.

python sample_corpora/make.py
"""

from __future__ import annotations

import bz2
import gzip
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

HERE = Path(__file__).parent
REAL, NASTY = HERE / "real", HERE / "nasty"
MODULES = [
    "argparse",
    "ast",
    "asyncio",
    "base64",
    "bisect",
    "bz2",
    "calendar",
    "cmath",
    "collections",
    "concurrent.futures",
    "configparser",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "dis",
    "email.message",
    "enum",
    "fileinput",
    "fnmatch",
    "fractions",
    "functools",
    "gc",
    "getpass",
    "gettext",
    "glob",
    "gzip",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "http.client",
    "imaplib",
    "inspect",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "keyword",
    "linecache",
    "locale",
    "logging",
    "lzma",
    "math",
    "mimetypes",
    "operator",
    "os",
    "os.path",
    "pathlib",
    "pickle",
    "pkgutil",
    "platform",
    "plistlib",
    "pprint",
    "queue",
    "random",
    "re",
    "sched",
    "secrets",
    "selectors",
    "shelve",
    "shlex",
    "shutil",
    "signal",
    "smtplib",
    "socket",
    "sqlite3",
    "ssl",
    "stat",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "sys",
    "sysconfig",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "timeit",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "urllib.parse",
    "urllib.request",
    "uuid",
    "warnings",
    "weakref",
    "xml.dom.minidom",
    "xml.etree.ElementTree",
    "zipfile",
    "zlib",
]
NUM_REAL = 300


def main() -> None:
    REAL.mkdir(exist_ok=True)
    NASTY.mkdir(exist_ok=True)
    make_real()
    EXPECTED.clear()
    make_bad_rows()
    make_bad_lines()
    make_whole_files()
    make_broken_files()
    make_tables()
    text = json.dumps(EXPECTED, indent=1, ensure_ascii=False, sort_keys=True)
    (HERE / "expected.json").write_text(text + "\n", encoding="utf-8")
    write_readme()


# --- the real corpus ---------------------------------------------------------------------------------------------


def make_real() -> None:
    rows = pick(list(docstrings()), NUM_REAL)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, REAL / "pydocs.parquet", row_group_size=100, compression="zstd")
    shards = REAL / "pydocs-shards"
    shards.mkdir(exist_ok=True)
    lines = [json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows]
    (shards / "pydocs-00000.jsonl").write_bytes(b"".join(lines[:100]))
    (shards / "pydocs-00001.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[100:200]), mtime=0))
    (shards / "pydocs-00002.jsonl.zst").write_bytes(zstandard.ZstdCompressor(level=19).compress(b"".join(lines[200:])))


def docstrings() -> Iterator[dict[str, str]]:
    """Docstrings of public classes, functions and methods of the standard library, each text once."""
    seen: set[str] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, text in documented(module):
            text = text.strip()
            if len(text) >= 80 and text not in seen and " at 0x" not in text:
                seen.add(text)
                full = f"{module_name}.{name}"
                page = f"https://docs.python.org/3.{sys.version_info.minor}/library/{module_name}.html"
                yield {
                    "id": full,
                    "title": full.replace(".", " › "),
                    "text": text,
                    "lang": "en",
                    "url": f"{page}#{full}",
                    "module": module_name,
                }


def documented(module: Any) -> Iterator[tuple[str, str]]:
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        doc = value.__dict__.get("__doc__") if inspect.isclass(value) else getattr(value, "__doc__", None)
        if isinstance(doc, str):
            yield name, inspect.cleandoc(doc)
        for inner, method in sorted(vars(value).items()) if inspect.isclass(value) else ():
            if not inner.startswith("_") and inspect.isfunction(method) and method.__doc__:
                yield f"{name}.{inner}", inspect.cleandoc(method.__doc__)


def pick(rows: list[dict[str, str]], count: int) -> list[dict[str, str]]:
    return [rows[i * len(rows) // count] for i in range(count)]


# --- the nasty ones ----------------------------------------------------------------------------------------------

EXPECTED: dict[str, dict[str, Any]] = {}
FINE = "A quiet row that must come through."


def expect(
    name: str,
    what: str,
    read: int = 0,
    *,
    dead: int = 0,
    duplicates: int = 0,
    reasons: tuple[str, ...] = (),
    exit_code: int | None = None,
    message: str | None = None,
) -> None:
    """Note what `embedctl embed nasty/NAME --model fake` must give. Rows are None where no run takes place."""
    rows = {"read": read, "written": read - dead - duplicates, "duplicates": duplicates, "dead": dead}
    EXPECTED[f"nasty/{name}"] = {
        "what": what,
        "exit_code": exit_code if exit_code is not None else 3 if dead else 0,
        "rows": None if exit_code in (2, 4) else rows,
        "reasons": list(reasons),
        "message": message,
    }


def fine(n: int) -> bytes:
    return json.dumps({"id": f"fine-{n}", "text": f"{FINE} Number {n}."}).encode()


def jsonl(name: str, lines: list[bytes], *, end: bytes = b"\n", final: bool = True, head: bytes = b"") -> None:
    (NASTY / name).write_bytes(head + end.join(lines) + (end if final else b""))


def text_line(id_: str, text: object, *, ascii_only: bool = False) -> bytes:
    return json.dumps({"id": id_, "text": text}, ensure_ascii=ascii_only).encode()


def make_bad_rows() -> None:
    jsonl("null.jsonl", [fine(1), text_line("null", None), b'{"id": "no-key"}', fine(2)])
    expect("null.jsonl", "one null text, one row without the key", 4, dead=2, reasons=("text is null",) * 2)
    jsonl("empty.jsonl", [fine(1), text_line("empty", ""), fine(2)])
    expect("empty.jsonl", "one empty text", 3, dead=1, reasons=("text is empty",))
    blanks = ["   ", "\t\r\n", "\u00a0\u00a0", "\u3000"]
    jsonl("whitespace.jsonl", [fine(1), *(text_line(f"blank-{i}", b) for i, b in enumerate(blanks)), fine(2)])
    what = "spaces, tabs and line ends, no-break spaces, an ideographic space"
    expect("whitespace.jsonl", what, 6, dead=4, reasons=("text is only white space",) * 4)
    nuls = [text_line("inside", "before\0after", ascii_only=True), text_line("only", "\0\0", ascii_only=True)]
    jsonl("nul.jsonl", [fine(1), *nuls, fine(2)])
    what = "a NUL inside a text (embedded as it is) and a text of nothing but NULs"
    expect("nul.jsonl", what, 4, dead=1, reasons=("text is only white space",))
    lone = b'{"id": "lone", "text": "half \\ud83d of a pair"}'
    pair = b'{"id": "pair", "text": "a whole pair: \\ud83d\\ude00"}'
    jsonl("surrogates.jsonl", [fine(1), lone, pair])
    expect("surrogates.jsonl", "one lone surrogate, one good pair", 3, dead=1, reasons=("lone surrogate",))
    jsonl("invalid_utf8.jsonl", [fine(1), b'{"id": "latin-1", "text": "caf\xe9 au lait"}', fine(2)])
    expect("invalid_utf8.jsonl", "one line in Latin-1", 3, dead=1, reasons=("line is not valid UTF-8",))
    wrong: list[object] = [17, ["a", "list"], {"an": "object"}, True]
    jsonl("wrong_types.jsonl", [fine(1), *(text_line(f"wrong-{i}", w) for i, w in enumerate(wrong)), fine(2)])
    kinds = ("is a number", "is a list", "is an object", "is a boolean")
    reasons = tuple(f"column 'text' {kind}, not a string" for kind in kinds)
    expect("wrong_types.jsonl", "texts that are a number, a list, an object, a boolean", 6, dead=4, reasons=reasons)
    jsonl("duplicate_ids.jsonl", [text_line(c, f"Row {i} has the id {c}.") for i, c in enumerate("abacba")])
    expect("duplicate_ids.jsonl", "six rows with three ids: the first of each wins", 6, duplicates=3)
    marks = [
        "👩‍👩‍👧‍👦 a family of one glyph, 🏳️‍🌈 a flag, 👍🏽 a skin tone",
        "e\u0301 and é are the same letter; Z\u0351\u036b\u0343\u034c\u0324a\u0309\u0344l\u0328\u0321g\u0338o\u0334",
        "שלום עולם, مرحبا بالعالم: right to left",
        "𝒎𝒂𝒕𝒉 𝕝𝕖𝕥𝕥𝕖𝕣𝕤 and ｆｕｌｌ ｗｉｄｔｈ, 𠜎𠜱 beyond the basic plane",
        "中文没有空格，日本語もありません。ภาษาไทยก็เช่นกัน",
        "zero\u200bwidth\u200djoiners\ufeff and a soft\u00adhyphen",
    ]
    jsonl("unicode.jsonl", [text_line(f"u{i}", m) for i, m in enumerate(marks)])
    expect("unicode.jsonl", "emoji, combining marks, right to left, astral letters, no spaces, zero width", 6)
    huge = text_line("huge", "All work and no play makes a dull corpus. " * 125_000)
    packed = zstandard.ZstdCompressor(level=3).compress(b"\n".join((fine(1), huge, fine(2))) + b"\n")
    (NASTY / "huge_text.jsonl.zst").write_bytes(packed)
    expect("huge_text.jsonl.zst", "a text of 5 MB between two short ones", 3)


def make_bad_lines() -> None:
    jsonl("not_json.jsonl", [fine(1), b'{"id": "cut", "text": "no end', b"Traceback (most recent call last):", fine(2)])
    expect("not_json.jsonl", "two lines that are not JSON", 4, dead=2, reasons=("line is not JSON",) * 2)
    lines = [fine(1), b'["a", "list"]', b"3.14", b'{"id": "nan", "text": "x", "score": NaN}', fine(2)]
    jsonl("not_object.jsonl", lines)
    reasons = ("line is a list, not a JSON object", "line is a number, not a JSON object", "NaN is not a JSON number")
    expect("not_object.jsonl", "a list, a number, and a NaN, which JSON does not have", 5, dead=3, reasons=reasons)
    csv = b"id,text,lang\n1,Fine.,en\n2,too few\n3,too,many,cells\n4,Also fine.,en\n"
    (NASTY / "ragged.csv").write_bytes(csv)
    reasons = ("row has 2 cells, the header has 3", "row has 4 cells, the header has 3")
    expect("ragged.csv", "a row of two cells and one of four under a header of three", 4, dead=2, reasons=reasons)
    (NASTY / "open_quote.csv").write_bytes(b'id,text\n1,Fine.\n2,"never closed\n3,swallowed\n')
    reason = "quote that is not closed"
    expect("open_quote.csv", "a quote that is not closed takes the rest of the file", 2, dead=1, reasons=(reason,))
    (NASTY / "quotes.csv").write_bytes(b'id,text\n1,"a ""quoted"" word, a comma\nand a second line"\n2,plain\n')
    expect("quotes.csv", "quotes, commas and line ends inside a cell", 2)


def make_whole_files() -> None:
    lines = [fine(i) for i in range(3)]
    jsonl("bom.jsonl", lines, head=b"\xef\xbb\xbf")
    expect("bom.jsonl", "a byte order mark before the first line", 3)
    (NASTY / "bom.csv").write_bytes(b"\xef\xbb\xbfid,text\n1,Fine.\n2,Fine too.\n")
    expect("bom.csv", "a byte order mark before the header", 2)
    jsonl("crlf.jsonl", lines, end=b"\r\n")
    expect("crlf.jsonl", "Windows line ends", 3)
    (NASTY / "crlf.csv").write_bytes(b"id,text\r\n1,Fine.\r\n2,Fine too.\r\n")
    expect("crlf.csv", "Windows line ends", 2)
    (NASTY / "crlf.txt").write_bytes(b"First line.\r\n\r\nThird line, the second is empty.\r\n")
    expect("crlf.txt", "Windows line ends and an empty line, which is no row", 2)
    jsonl("no_final_newline.jsonl", lines, final=False)
    expect("no_final_newline.jsonl", "the last line does not end", 3)
    jsonl("blank_lines.jsonl", [b"", fine(1), b"   ", b"", fine(2), b""])
    expect("blank_lines.jsonl", "blank lines between rows, which are no rows", 2)
    (NASTY / "zero_bytes.jsonl").write_bytes(b"")
    expect("zero_bytes.jsonl", "nothing at all: no rows", 0)
    members = gzip.compress(fine(1) + b"\n", mtime=0) + gzip.compress(fine(2) + b"\n", mtime=0)
    (NASTY / "members.jsonl.gz").write_bytes(members)
    expect("members.jsonl.gz", "two gz members one after another", 2)


def make_broken_files() -> None:
    (NASTY / "zero_bytes.parquet").write_bytes(b"")
    expect("zero_bytes.parquet", "nothing at all", exit_code=4, message="is empty (0 bytes), not a parquet file")
    whole = (REAL / "pydocs.parquet").read_bytes()
    (NASTY / "truncated.parquet").write_bytes(whole[:2000])
    expect("truncated.parquet", "a Parquet file without its end", exit_code=4, message="not a readable Parquet file")
    many = b"\n".join(text_line(f"r{i}", f"Row {i} of a file that was cut: {hash_text(i)}") for i in range(200)) + b"\n"
    for suffix, packed in (
        ("gz", gzip.compress(many, mtime=0)),
        ("zst", zstandard.ZstdCompressor().compress(many)),
        ("bz2", bz2.compress(many)),
    ):
        name = f"truncated.jsonl.{suffix}"
        (NASTY / name).write_bytes(packed[: len(packed) * 2 // 3])
        expect(name, f"a {suffix} file without its end", exit_code=4, message=f"is a truncated {suffix} file")
    (NASTY / "utf16.jsonl").write_bytes((fine(1) + b"\n").decode().encode("utf-16"))
    expect("utf16.jsonl", "UTF-16 text", exit_code=4, message="is UTF-16 text; only UTF-8 can be read")
    document = json.dumps([{"id": 1, "text": FINE}, {"id": 2, "text": FINE}], indent=1)
    (NASTY / "document.json").write_text(document, encoding="utf-8")
    expect("document.json", "one JSON array over many lines", exit_code=4, message="is one JSON document")
    (NASTY / "duplicate_header.csv").write_bytes(b"id,text,text\n1,a,b\n")
    message = "column 'text' is in the header twice"
    expect("duplicate_header.csv", "a column name that is there twice", exit_code=4, message=message)
    (NASTY / "unknown.xyz").write_bytes(fine(1) + b"\n")
    expect("unknown.xyz", "an extension that says nothing", exit_code=2, message="unknown extension")
    jsonl("no_text.jsonl", [b'{"headline": "a", "byline": "b"}'])
    expect("no_text.jsonl", "two columns that could be the text", exit_code=2, message="which column is the text?")


def hash_text(i: int) -> str:
    import hashlib

    return hashlib.sha256(str(i).encode()).hexdigest()


def make_tables() -> None:
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    pq.write_table(schema.empty_table(), NASTY / "zero_rows.parquet")
    expect("zero_rows.parquet", "a table without rows", 0)
    raw = pa.array([b"Fine.", b"caf\xe9", None, b"Also fine."], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "text": raw}), NASTY / "invalid_utf8.parquet")
    reasons = ("column 'text' is not valid UTF-8", "text is null")
    what = "a string that is not valid UTF-8, and a null; ids are numbers"
    expect("invalid_utf8.parquet", what, 4, dead=2, reasons=reasons)
    nested = pa.table(
        {
            "id": ["a", "b"],
            "text": pa.array(["Red.", "Red."]).dictionary_encode(),
            "meta": [{"lang": "en", "tags": ["x"]}, None],
        }
    )
    pq.write_table(nested, NASTY / "nested.parquet")
    expect("nested.parquet", "a dictionary-encoded text beside a struct with a list", 2)
    folder(
        "drift_tolerated",
        pa.table({"id": pa.array([1, 2], pa.int32()), "text": ["One.", "Two."]}),
        pa.table({"id": pa.array([3], pa.int64()), "text": pa.array(["Three."], pa.large_string()), "more": [1.5]}),
        pa.table({"text": pa.array(["Four."]).dictionary_encode(), "id": ["4"]}),
        pa.table({"id": [5], "text": pa.array([None], pa.null())}),
    )
    what = "four files whose ids are of three types and whose texts are stored in four ways; one text is null"
    expect("drift_tolerated", what, 5, dead=1, reasons=("text is null",))
    folder("drift_refused", pa.table({"id": [1], "text": ["One."]}), pa.table({"id": [2], "text": [2]}))
    message = "column 'text' of part-1.parquet is int64, not text"
    what = "two files, one of them with numbers for a text"
    expect("drift_refused", what, exit_code=2, message=message)


def folder(name: str, *tables: pa.Table) -> None:
    (NASTY / name).mkdir(exist_ok=True)
    for i, table in enumerate(tables):
        pq.write_table(table, NASTY / name / f"part-{i}.parquet")


# --- what each must give -----------------------------------------------------------------------------------------


def write_readme() -> None:
    text = (HERE / "README.md").read_text(encoding="utf-8")
    head = ("file", "what is in it", "exit", "read", "written", "duplicates", "dead", "says")
    table = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, e in sorted(EXPECTED.items()):
        rows = e["rows"]
        numbers = [str(rows[k]) for k in ("read", "written", "duplicates", "dead")] if rows else ["", "", "", ""]
        says = e["message"] or "; ".join(dict.fromkeys(e["reasons"]))
        table.append(f"| {name} | {e['what']} | {e['exit_code']} | {' | '.join(numbers)} | {says} |")
    marked = "<!-- table -->\n" + "\n".join(table) + "\n<!-- end -->"
    new = re.sub(r"<!-- table -->.*<!-- end -->", lambda _: marked, text, flags=re.DOTALL)
    (HERE / "README.md").write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
