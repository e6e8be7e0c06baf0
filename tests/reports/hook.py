"""A small HTTP server that keeps what it gets, and answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Heard:
    """What came: (path, headers, body). `answers` are the codes to give, the last one for ever."""

    url: str
    answers: list[int] = field(default_factory=lambda: [200])
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def listening(answers: Sequence[int] = (200,)) -> Iterator[Heard]:
    """A server on a free port of this machine, for the length of the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            heard.requests.append((self.path, dict(self.headers.items()), body))
            code = heard.answers.pop(0) if len(heard.answers) > 1 else heard.answers[0]
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            heard.requests.append((f"GET {self.path}", {}, b""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    heard = Heard(f"http://127.0.0.1:{server.server_port}", list(answers))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
