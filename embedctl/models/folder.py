"""The record of a model folder: what an encoder and a tokenizer need to know before anything heavy is loaded.

Enters: what `st_format` and `load` read. Leaves: a frozen `ModelFolder`, which answers a job's questions (prompt,
length, dimension, fingerprint). Refuses: an unknown prompt name, a length or dimension the model does not have.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from embedctl.errors import UsageError
from embedctl.media import WORDS, Kind
from embedctl.models.fake import VOCABULARY, fake_options
from embedctl.models.fingerprint import file_sha256, fingerprint_of
from embedctl.models.modules import Dense, Late, Media, Module, Normalize, Pooling, SparseHead
from embedctl.models.muvera import Muvera
from embedctl.models.onnx_format import OnnxGraph
from embedctl.models.scorer import Scorer
from embedctl.outputs import OutputKind
from embedctl.spec import JobSpec

UNLIMITED = 1 << 30
"""`max_seq_length` of a model that takes texts of any length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """One model as found on disk.

    `path` holds config, tokenizer and weights of the transformer or static table (None for fakes); `root` the whole
    folder. `modules` follow the transformer in order; those before the pooling act on every token. `notes` are facts a
    user should hear. `max_positions`: tokens the weights can place, None where any number. `gives`: the outputs it can
    give, the one it is made for first. `marker`: a token put behind the first special one. `query_side`: the same model
    as it reads queries, None where it reads them like documents. `labels` of a score's numbers; `scorer`: where they
    come from, read by `score_format` only. `modifier`: what a store weighs its sparse vectors by. `muvera`: how its
    many vectors become one, where that is wanted. `settings`: what else makes the numbers of a lexical model, as a
    hash. `media`: what it reads beside text; `reads`: what rows are to it, None for texts. `onnx`: what runs in the
    place of its weights, None for torch.
    """

    name: str
    kind: Literal["transformer", "static", "fake", "lexical"]
    path: Path | None = None
    root: Path | None = None
    architecture: str = ""
    model_type: str = ""
    modules: tuple[Module, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_seq_length: int = UNLIMITED
    max_positions: int | None = None
    lowercase: bool = False
    add_special_tokens: bool = True
    similarity: str = "cosine"
    hidden_dim: int = 0
    truncate_dim: int | None = None
    weights: tuple[Path, ...] = ()
    revision: str | None = None
    allow_pickle: bool = False
    trust_remote_code: bool = False
    notes: tuple[str, ...] = ()
    gives: tuple[OutputKind, ...] = ("dense",)
    sparse: SparseHead | None = None
    late: Late | None = None
    muvera: Muvera | None = None
    marker: str = ""
    query_side: ModelFolder | None = None
    for_queries: bool = False
    labels: tuple[str, ...] = ()
    modifier: Literal["idf"] | None = None
    settings: str = ""
    scorer: Scorer | None = None
    media: Media | None = None
    reads: Kind | None = None
    onnx: OnnxGraph | None = None

    @property
    def pooling(self) -> Pooling | None:
        """The folder's own pooling; None for static and fake models."""
        return next((m for m in self.modules if isinstance(m, Pooling)), None)

    @property
    def normalize(self) -> bool:
        """Whether vectors leave with length 1."""
        return any(isinstance(m, Normalize) for m in self.modules)

    @property
    def output_dim(self) -> int:
        """Width of the model's vectors, before any Matryoshka cut."""
        return self.width()

    def width(self, pooling: str | None = None) -> int:
        """Output width with the folder's pooling, or with one mode in its place.

        :raises UsageError: a Dense layer that follows does not fit the other pooling's width.
        """
        width = self.hidden_dim
        for module in self.modules:
            if isinstance(module, Pooling):
                width *= 1 if pooling else len(module.modes)
            elif isinstance(module, Dense):
                if module.in_features != width:
                    raise UsageError(
                        f"--pooling {pooling}: {self.name} has a Dense layer that takes {module.in_features} "
                        f"numbers, this pooling gives {width}",
                        hint="leave out --pooling",
                    )
                width = module.out_features
        return width

    def prompt(self, spec: JobSpec) -> str:
        """The text put before every document: `--prompt`, else `--prompt-name`, else the folder's default, else "".

        :raises UsageError: the folder has no prompt of that name; the known ones are listed.
        """
        if spec.prompt is not None:
            return spec.prompt
        name = spec.prompt_name if spec.prompt_name is not None else self.default_prompt_name
        if name is None:
            return ""
        if name in self.prompts:
            return self.prompts[name]
        near = difflib.get_close_matches(name, self.prompts, n=1)
        known = ", ".join(self.prompts) or "none"
        raise UsageError(
            f"--prompt-name: {self.name} has no prompt {name!r}; it has: {known}",
            hint=f"--prompt-name {near[0]}" if near else "--prompt 'TEXT' gives the prompt itself",
        )

    def max_length(self, spec: JobSpec) -> int:
        """Tokens a text may have, special tokens included.

        :raises UsageError: `--max-length` is more than the weights have positions for.
        """
        if spec.max_length is None:
            return self.max_seq_length
        if self.max_positions is not None and spec.max_length > self.max_positions:
            raise UsageError(
                f"--max-length: {self.name} has positions for {self.max_positions} tokens, {spec.max_length} asked",
                hint=f"--max-length {self.max_positions}",
            )
        return spec.max_length

    def dim(self, spec: JobSpec) -> int:
        """Width of the vectors of this job: `--dim`, else the folder's `truncate_dim`, else the model's own.

        :raises UsageError: `--dim` is more than the model gives.
        """
        full = self.late.width if self.late is not None and "dense" not in self.gives else self.width(spec.pooling)
        wanted = spec.dim or min(self.truncate_dim or full, full)
        if wanted > full:
            raise UsageError(f"--dim: {self.name} gives {full} numbers, {wanted} asked", hint=f"--dim {full}")
        return wanted

    @property
    def kinds(self) -> tuple[OutputKind, ...]:
        """The outputs it can give in one pass, the one it is made for first."""
        if self.kind == "fake":
            return fake_options(self.name).kinds
        return self.gives if self.muvera is None else ("dense", *self.gives)

    def numbers(self, kind: OutputKind, spec: JobSpec) -> int:
        """See `OutputSpec.dim`. :raises UsageError: `--dim` is more than the model gives, or cannot be had of it."""
        if kind == "sparse":
            if self.sparse is None:
                return 1 << 32 if self.kind == "lexical" else VOCABULARY
            if spec.dim is not None and "dense" not in self.gives:
                raise UsageError(
                    f"--dim: {self.name} gives sparse vectors, which are not cut",
                    hint="--sparse-top-k keeps the greatest",
                )
            return self.sparse.vocabulary
        if kind == "dense" and self.muvera is not None:
            return self.muvera.width
        if kind == "score":
            return max(len(self.labels), 1)
        if kind != "multivector" or self.late is None:
            return self.dim(spec)
        wanted = spec.dim if spec.dim is not None and "dense" not in self.gives else self.late.width
        if wanted > self.late.width:
            raise UsageError(
                f"--dim: {self.name} gives {self.late.width} numbers, {wanted} asked", hint=f"--dim {self.late.width}"
            )
        return wanted

    def in_one(self, muvera: Muvera) -> ModelFolder:
        """The model with a dense output made of its many vectors. :raises UsageError: it gives none, or is dense."""
        if self.late is None or "dense" in self.gives:
            raise UsageError(
                f"--muvera: {self.name} gives {', '.join(self.kinds)}; it is for models of late interaction alone",
                hint="--model FOLDER names a ColBERT",
            )
        query = None if self.query_side is None else replace(self.query_side, muvera=muvera)
        return replace(self, muvera=muvera, query_side=query)

    def as_query(self) -> ModelFolder:
        """The model as it reads queries: with the query side's prompt, length, way and expansion, nothing merged."""
        return replace(self.query_side or self, query_side=None, for_queries=True)

    def reading(self, kind: Kind) -> ModelFolder:
        """The model as it reads pictures or sounds; queries stay texts.

        :raises UsageError: it reads none.
        """
        if self.media is None or self.media.takes != kind:
            which = {"image": "CLIP, SigLIP, ColPali and their kin", "audio": "CLAP"}[kind]
            raise UsageError(
                f"--{kind}-column: {self.name} ({self.architecture or self.kind}) reads no {WORDS[kind]}s; {which} do",
                hint="--model FOLDER names another model",
            )
        return replace(
            self,
            reads=kind,
            max_seq_length=UNLIMITED,
            max_positions=None,
            default_prompt_name=None,
            query_side=self,
        )

    def tokenizer_fingerprint(self) -> str:
        """The same for models whose tokenizers have the same files."""
        if self.path is None:
            return self.kind
        names = ("tokenizer", "special_tokens", "added_tokens", "vocab", "merges", "spiece", "sentencepiece")
        files = sorted(f for f in self.path.iterdir() if f.name.startswith(names))
        return ",".join(file_sha256(f) for f in files) or str(self.path)

    def fingerprint(self) -> str:
        """sha256 over the contents of weights, tokenizer and settings: the same wherever the folder lies."""
        found = fingerprint_of(self.root, self.name, self.weights)
        return hashlib.sha256((found + self.settings).encode()).hexdigest() if self.settings else found
