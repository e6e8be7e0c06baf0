"""Questions and answers to measure retrieval with: Perl's FAQ, some 300 pairs, from the pod files of its documentation.

Enters: a folder, an installed perl-doc, or Debian's package. Leaves: pairs, and the files that `embedctl embed` and
`embedctl eval` read. Refused: pod files that hold too few questions.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MIN_PAIRS = 250
POD_ROOTS = ("/usr/share/perl", "/usr/share/perl5", "/usr/local/lib/perl5", "/usr/local/share/perl5")
PACKAGE = "perl-doc"

Pair = tuple[str, str]
"""A question, and the answer that is right for it."""


class BenchFailed(Exception):
    """There is nothing to measure, or a command failed. Never leaves the bench."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Question n is `q<n>`, its answer `a<n>`. rows: Parquet; queries, qrels: as `embedctl eval` reads them."""

    pairs: tuple[Pair, ...]
    rows: Path
    queries: Path
    qrels: Path

    @property
    def ids(self) -> list[str]:
        return [f"a{n}" for n in range(len(self.pairs))]

    @property
    def judged(self) -> dict[str, dict[str, int]]:
        return {f"q{n}": {f"a{n}": 1} for n in range(len(self.pairs))}


def pairs_of(root: Path) -> list[Pair]:
    """Perl's FAQ, parts 1 to 9, wherever they lie under `root`; [] where they do not."""
    pairs = []
    for number in range(1, 10):
        for path in sorted(root.glob(f"**/perlfaq{number}.pod"))[:1]:
            text = re.sub(r"X<[^>]*>", "", path.read_text(encoding="utf-8", errors="replace"))
            for part in re.split(r"^=head2 ", text, flags=re.MULTILINE)[1:]:
                question, _, answer = re.split(r"^=head1 ", part, flags=re.MULTILINE)[0].partition("\n")
                if question.strip() and answer.strip():
                    pairs.append((question.strip(), answer.strip()))
    return pairs


def find_pairs(pods: Path | None, scratch: Path) -> list[Pair]:
    """Of the folder given, else of an installed perl-doc, else of Debian's package, fetched into `scratch`.

    :raises BenchFailed: fewer than MIN_PAIRS questions there.
    """
    for root in [pods] if pods else [Path(root) for root in POD_ROOTS]:
        if len(found := pairs_of(root)) >= MIN_PAIRS:
            return found
        if pods:
            raise BenchFailed(f"--pods: {pods} holds {len(found)} questions in perlfaq1.pod to perlfaq9.pod, not 300")
    try:
        output_of(["apt-get", "download", PACKAGE], scratch)
        output_of(["dpkg", "-x", str(next(iter(scratch.glob(f"{PACKAGE}*.deb")))), str(scratch / "pods")], scratch)
    except (BenchFailed, OSError, StopIteration) as exc:
        raise BenchFailed(
            f"Perl's FAQ is not on this machine and cannot be fetched ({exc}): apt-get install {PACKAGE}, or --pods"
        ) from exc
    return find_pairs(scratch / "pods", scratch)


def write_questions(pairs: Sequence[Pair], folder: Path) -> Questions:
    """The pairs as the files that the command reads."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = Questions(
        pairs=tuple(pairs), rows=folder / "rows.parquet", queries=folder / "queries.jsonl", qrels=folder / "qrels.tsv"
    )
    pq.write_table(pa.table({"id": made.ids, "text": [answer for _, answer in pairs]}), made.rows)
    lines = (json.dumps({"id": f"q{n}", "text": question}) for n, (question, _) in enumerate(pairs))
    made.queries.write_text("\n".join(lines) + "\n", encoding="utf-8")
    made.qrels.write_text("".join(f"q{n}\ta{n}\t1\n" for n in range(len(pairs))), encoding="utf-8")
    return made


def output_of(words: Sequence[str], folder: Path | None = None) -> str:
    """What a command prints, in this folder. :raises BenchFailed: it failed, with its last words."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise BenchFailed(f"{' '.join(words[:5])} ...: exit code {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout
