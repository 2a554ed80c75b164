"""An S3 server of this process, and the environment that points its users there."""

import contextlib
from collections.abc import Iterator

import httpx
import pytest
from requirements import need_package


@contextlib.contextmanager
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start a server with a new bucket; yield the address of a home in it."""
    moto = need_package("moto.server")
    boto3 = need_package("boto3")
    s3fs = need_package("s3fs")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    # The servers of a process share their buckets.
    httpx.post(f"http://{host}:{port}/moto-api/reset", trust_env=False).raise_for_status()
    s3fs.S3FileSystem.clear_instance_cache()  # an instance keeps the address of its server
    boto3.client("s3").create_bucket(Bucket="team")
    try:
        yield "s3://team/home"
    finally:
        server.stop()
