"""Where a Qdrant server is: `qdrant://HOST[:6334]/NAME` over gRPC, `qdrant+http(s)://HOST[:6333][/PREFIX]/NAME`: REST.

Enters: such a URI. `?tls=true`: gRPC over TLS, as for Qdrant Cloud's hosts always; `?ca=FILE`: the certificates to
trust. From the environment: QDRANT_API_KEY, which is stored nowhere; QDRANT_TIMEOUT_S, the seconds a request may take;
HTTPS_PROXY, HTTP_PROXY and NO_PROXY. Leaves: an `Address`, and a client. Refused: anything else in the URI.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from embedctl.errors import UsageError

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

REST_PORT, GRPC_PORT = 6333, 6334
CLOUD = ".cloud.qdrant.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`name` is the URI for messages, without secrets. `prefix`: of the path, as a proxy may want it; REST only."""

    scheme: str
    host: str
    port: int
    prefix: str
    collection: str
    tls: bool
    ca: str | None

    @property
    def grpc(self) -> bool:
        return self.scheme == "qdrant"

    @property
    def name(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}/{quote(self.collection, safe='')}"

    def of(self, collection: str) -> Address:
        """Another collection of the same server."""
        return replace(self, collection=collection)


def parse(target: str) -> Address:
    """:raises UsageError: not such a URI."""
    parts = urlsplit(target)
    prefix, _, collection = parts.path.rstrip("/").rpartition("/")
    rest = parts.scheme != "qdrant"
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not collection or (prefix and not rest):
        shape = "HOST[:PORT][/PREFIX]/COLLECTION" if rest else "HOST[:PORT]/COLLECTION"
        shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise UsageError(f"--to: {shown} is not {parts.scheme}://{shape}", hint="--to qdrant://localhost:6334/docs")
    if "@" in parts.netloc:
        raise UsageError("--to: a key in the address would be seen by others", hint="set QDRANT_API_KEY")
    asked = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(asked.keys() - {"tls", "ca"})
    if unknown or asked.get("tls", "true") != "true":
        raise UsageError(
            f"--to: {parts.query!r} is not known; only tls=true and ca=FILE are", hint=target.partition("?")[0]
        )
    ca = asked.get("ca")
    if ca is not None and not Path(ca).is_file():
        raise UsageError(f"--to: ca={ca}: no such file", hint="?ca=/etc/ssl/my-ca.pem")
    return Address(
        scheme=parts.scheme,
        host=host,
        port=port or (REST_PORT if rest else GRPC_PORT),
        prefix=prefix,
        collection=unquote(collection),
        tls=parts.scheme.endswith("https") or "tls" in asked or (not rest and host.endswith(CLOUD)),
        ca=ca,
    )


def timeout_s() -> int:
    """:raises UsageError: QDRANT_TIMEOUT_S is no number."""
    timeout = os.environ.get("QDRANT_TIMEOUT_S", "60")
    if not timeout.isdecimal() or not int(timeout):
        raise UsageError(f"QDRANT_TIMEOUT_S: {timeout!r} is not a whole number of seconds")
    return int(timeout)


def connect(address: Address) -> QdrantClient:
    """A client that asks nothing yet. :raises UsageError: it is not installed, or QDRANT_TIMEOUT_S is no number."""
    try:
        from qdrant_client import QdrantClient
    except ImportError as exc:
        raise UsageError("the Qdrant client is not installed", hint="pip install 'embedctl[qdrant]'") from exc
    more: dict[str, Any] = {}
    if address.ca is not None and address.grpc:
        more["grpc_options"] = {"root_certificates": Path(address.ca).read_bytes()}
    elif address.ca is not None:
        more["verify"] = address.ca
    return QdrantClient(
        host=address.host,
        port=REST_PORT if address.grpc else address.port,
        grpc_port=address.port if address.grpc else GRPC_PORT,
        prefer_grpc=address.grpc,
        prefix=address.prefix or None,
        https=address.tls,
        api_key=os.environ.get("QDRANT_API_KEY"),
        timeout=timeout_s(),
        check_compatibility=False,
        **more,
    )
