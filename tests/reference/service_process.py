"""The example service as a real process: started, asked for its statistics, killed."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path


class ServiceProcess:
    """A running service."""

    def __init__(self, corpus: Path, port: int = 0) -> None:
        script = Path(__file__).with_name("example_service.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), "--corpus", str(corpus), "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def url(self, **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"http://127.0.0.1:{self.port}/search" + (f"?{query}" if query else "")

    def stats(self) -> dict:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/stats", timeout=10) as reply:
            return json.load(reply)

    def asked(self, url: str) -> int:
        return self.stats()["asked"].get(url.removeprefix(f"http://127.0.0.1:{self.port}"), 0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def running(corpus: Path, port: int = 0) -> Iterator[ServiceProcess]:
    service = ServiceProcess(corpus, port)
    try:
        yield service
    finally:
        service.kill()
