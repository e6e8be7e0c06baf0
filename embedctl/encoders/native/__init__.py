"""Our own CPU kernels, compiled on the user's machine for its processor, in under a second, and cached.

Enters: the C sources beside this. Leaves: `Kernels`, its functions on torch tensors; or the reason there are none (no C
compiler, a system without AMX for those that need it). Every kernel has a plain twin in torch, which runs without
it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

FLAGS = (
    "-O3", "-fPIC", "-shared", "-std=gnu11",
    "-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros",
)  # fmt: skip
"""Sums may be taken in vector order; NaN and Inf keep their meaning."""

NARROWER = {"avx2": "-march=haswell", "default": "-march=x86-64-v2"}
"""What `ATEN_CPU_CAPABILITY` keeps torch to, our kernels keep to as well."""

SOURCES = ("kernels.c", "tiles.c", "attention.c", "product.c", "vocabulary.c")
"""Compiled as one, in this order."""

TILE_ROWS = 32
"""Rows, and columns, that a product takes at a time."""

_COMPILE_TIMEOUT_S = 60.0
_P, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Kernels:
    """The compiled functions. All run on the calling thread, off the GIL, on contiguous CPU tensors."""

    def __init__(self, path: Path) -> None:
        """:raises OSError: not a library this machine can load."""
        self._library = ctypes.CDLL(str(path))
        for suffix in ("bf16", "f32"):
            self._function(f"bias_gelu_{suffix}", [_P, _P, _I, _I])
            self._function(f"add_norm_{suffix}", [_P, _P, _P, _P, _P, _F, _I, _I, _P])
        self.has_tiles = bool(self._library.has_tiles())
        """Whether `attend`, `product` and `vocabulary_max` can run: AMX tiles for bfloat16."""
        if self.has_tiles:
            self._function("attend_bf16", [_P, _P, _I, _I, _I, _P, _P, _I])
            self._library.attend_work_bytes.argtypes = [_I, _I]
            self._library.attend_work_bytes.restype = _I
            self._function("pack_weights_bf16", [_P, _P, _I, _I])
            self._function("product_bf16", [_P, _P, _I, _I, _P, _I, _P, _I])
            self._function("vocabulary_max_bf16", [_P, _P, _P, _I, _P, _I, _I])

    def _function(self, name: str, arguments: list[type]) -> None:
        function = getattr(self._library, name)
        function.argtypes, function.restype = arguments, None

    def bias_gelu(self, x_TF: Tensor, bias_F: Tensor) -> Tensor:
        """gelu(x + bias), in place: x bfloat16 or float32, bias float32. erf's error is at most 3e-7."""
        run = getattr(self._library, f"bias_gelu_{_suffix(x_TF)}")
        run(x_TF.data_ptr(), bias_F.data_ptr(), *x_TF.shape)
        return x_TF

    def add_norm(
        self, x_TE: Tensor, bias_E: Tensor, residual_TE: Tensor, gamma_E: Tensor, beta_E: Tensor, eps: float
    ) -> Tensor:
        """layer_norm(x + bias + residual) into `residual_TE`; x and residual of one dtype, the rest float32."""
        work = torch.empty(x_TE.shape[1], dtype=torch.float32)
        run = getattr(self._library, f"add_norm_{_suffix(x_TE)}")
        run(
            x_TE.data_ptr(), bias_E.data_ptr(), residual_TE.data_ptr(), gamma_E.data_ptr(), beta_E.data_ptr(), eps,
            *x_TE.shape, work.data_ptr(),
        )  # fmt: skip
        return residual_TE

    def attend(self, qkv_TX: Tensor, cu_seqlens: Tensor, heads: int, longest: int, out_TE: Tensor) -> None:
        """Attention of each sequence with itself into `out_TE`: qkv bfloat16 (T, 3E) with biases, cu_seqlens int32.

        E / heads is a multiple of 32."""
        head_width = out_TE.shape[1] // heads
        work = torch.empty(self._library.attend_work_bytes(longest, head_width), dtype=torch.uint8)
        self._library.attend_bf16(
            qkv_TX.data_ptr(), cu_seqlens.data_ptr(), len(cu_seqlens) - 1, heads, head_width, out_TE.data_ptr(),
            work.data_ptr(), longest,
        )  # fmt: skip

    def pack_weights(self, weight_NK: Tensor) -> Tensor:
        """Weights, bfloat16 (N, K), as the products take them: N filled up to a multiple of 32. K is one."""
        rows, width = -(-len(weight_NK) // TILE_ROWS) * TILE_ROWS, weight_NK.shape[1]
        filled = torch.zeros(rows, width, dtype=torch.bfloat16)
        filled[: len(weight_NK)] = weight_NK
        packed = torch.empty_like(filled)
        self._library.pack_weights_bf16(packed.data_ptr(), filled.data_ptr(), rows, width)
        return packed

    def product(
        self, x_TK: Tensor, packed_NK: Tensor, bias_N: Tensor | None, out_TN: Tensor, *, with_gelu: bool = False
    ) -> None:
        """x weight^T + bias, or its GELU, into `out_TN`. x and out bfloat16, bias float32; GELU off by at most 1e-5 x.

        :raises ValueError: x's memory ends before a multiple of 32 rows. Whole tiles are read, the surplus is dropped.
        """
        rows, width = x_TK.shape
        ends = (x_TK.storage_offset() + -(-rows // TILE_ROWS) * TILE_ROWS * width) * x_TK.element_size()
        if ends > x_TK.untyped_storage().nbytes():
            raise ValueError(f"{rows} rows have no memory up to a multiple of {TILE_ROWS} rows")
        bias = torch.zeros(len(packed_NK)) if bias_N is None else bias_N
        self._library.product_bf16(
            out_TN.data_ptr(), x_TK.data_ptr(), rows, width, packed_NK.data_ptr(), len(packed_NK), bias.data_ptr(),
            with_gelu,
        )  # fmt: skip

    def vocabulary_max(self, x_TE: Tensor, sequence_of_T: Tensor, count: int, packed_VE: Tensor) -> Tensor:
        """float32 (count, V filled up): the greatest product of each row of weights with the tokens of each sequence.

        x bfloat16, E a multiple of 32; sequence_of int32. Not for x with NaN or Inf, which maxima would lose."""
        tokens, width = x_TE.shape
        filled = torch.zeros(-(-tokens // 32) * 32, width, dtype=torch.bfloat16)
        filled[:tokens] = x_TE
        out = torch.full((count, len(packed_VE)), float("-inf"))
        self._library.vocabulary_max_bf16(
            out.data_ptr(), filled.data_ptr(), sequence_of_T.data_ptr(), tokens, packed_VE.data_ptr(),
            len(packed_VE), width,
        )  # fmt: skip
        return out


def _suffix(x: Tensor) -> str:
    return "bf16" if x.dtype == torch.bfloat16 else "f32"


@functools.cache
def load() -> tuple[Kernels | None, str]:
    """(kernels, where they came from) or (None, why there are none). Compiled once a machine, loaded once a process."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if os.name != "posix" or not compiler:
        return None, "no C compiler was found (cc, gcc or clang)"
    source = b"\n".join(resources.files(__package__).joinpath(name).read_bytes() for name in SOURCES)
    try:
        path = _cache_folder() / f"kernels-{_key(source, compiler)}.so"
        if not path.exists():
            _compile(compiler, source, path)
        return Kernels(path), f"compiled by {Path(compiler).name} for this processor"
    except subprocess.CalledProcessError as exc:
        return (
            None,
            f"{compiler} could not compile them: {exc.stderr.decode(errors='replace').strip().splitlines()[:1]}",
        )
    except (OSError, subprocess.TimeoutExpired, AttributeError) as exc:
        return None, f"they could not be compiled or loaded: {exc}"


def _flags() -> tuple[str, ...]:
    asked = os.environ.get("ATEN_CPU_CAPABILITY", "").lower() if platform.machine() == "x86_64" else ""
    return (NARROWER.get(asked, "-march=native"), *FLAGS)


def _compile(compiler: str, source: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        text, built = Path(folder) / "kernels.c", Path(folder) / "kernels.so"
        text.write_bytes(source)
        subprocess.run(
            [*compiler.split(), *_flags(), str(text), "-o", str(built), "-lm"],
            check=True, capture_output=True, timeout=_COMPILE_TIMEOUT_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        built.replace(path)


def _key(source: bytes, compiler: str) -> str:
    """Another source, flag, compiler or processor is another library."""
    version = subprocess.run([*compiler.split(), "--version"], capture_output=True, check=False, timeout=10).stdout
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
        processor = "".join(line for line in info.split("\n\n")[0].splitlines() if "flags" in line or "model" in line)
    except OSError:
        processor = ""
    return hashlib.sha256(b"\0".join([source, " ".join(_flags()).encode(), version, processor.encode()])).hexdigest()[
        :16
    ]


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "embedctl"
