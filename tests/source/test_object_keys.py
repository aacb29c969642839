"""Object keys that no path on a disk can have: folder markers, objects that are also folders, empty parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from s3 import KEYS, free_ports

from broadsheet.pipeline.source.plan.files import Files, find_files

moto = pytest.importorskip("moto.server")
boto3 = pytest.importorskip("boto3")

LINE = b'{"text": "an article"}\n'
OBJECTS = {
    "data/": b"",
    "data/a.jsonl": LINE,
    "runs/x.parquet/": b"",
    "runs/x.parquet/part-0.jsonl": LINE,
    "emr/z.parquet": b"",
    "emr/z.parquet/part-0.jsonl": LINE,
    "both/a.jsonl": LINE,
    "both/a.jsonl/b.jsonl": LINE,
    "empty/a.jsonl": LINE,
    "empty/b.parquet/": b"",
    "empty/c.jsonl": b"",
    "slashes/.a/-.jsonl": LINE,
    "slashes/a.jsonl": LINE,
    "slashes//b.jsonl": LINE,
    "slashes/deep/c.jsonl": LINE,
    "slashes/deep//d.jsonl": LINE,
    "dots/../a.jsonl": LINE,
    "dots/b.jsonl": LINE,
}


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The endpoint of an S3 server that accepts every key, and holds these objects."""
    (port,) = free_ports(1)
    server = moto.ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{port}"
    keys = {name.lower(): value for name, value in KEYS.items()}
    client: Any = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="keys")
    for key, data in OBJECTS.items():
        client.put_object(Bucket="keys", Key=key, Body=data)
    yield endpoint
    server.stop()


def find(name: str, endpoint: str) -> tuple[list[str], Files]:
    files = find_files([f"s3://keys/{name}"], 70, 1014, endpoint=endpoint)
    return [file.path.removeprefix("s3://keys/") for file in files.found], files


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        *((f"data{pattern}", ["data/a.jsonl"]) for pattern in ("", "/", "/*", "/**", "/**/*", "/a.jsonl")),
        *((f"runs{pattern}", ["runs/x.parquet/part-0.jsonl"]) for pattern in ("", "/*/*.jsonl", "/**/*", "/**")),
        *((f"emr{pattern}", ["emr/z.parquet/part-0.jsonl"]) for pattern in ("", "/z.parquet", "/*/*", "/**")),
        *((f"both{pattern}", ["both/a.jsonl", "both/a.jsonl/b.jsonl"]) for pattern in ("", "/**", "/**/*.jsonl")),
        ("both/a.jsonl", ["both/a.jsonl"]),
        ("both/a.jsonl/", ["both/a.jsonl/b.jsonl"]),
        *((f"empty{pattern}", ["empty/a.jsonl", "empty/c.jsonl"]) for pattern in ("", "/*", "/**")),
    ],
)
def test_a_mark_of_a_folder_is_no_file_and_an_object_that_is_a_folder_too_is_one(
    bucket: str, given: str, keys: list[str]
) -> None:
    found, files = find(given, bucket)
    assert (found, files.problems) == (keys, ())


@pytest.mark.parametrize("pattern", ["", "/**", "/**/*.jsonl"])
def test_objects_that_cannot_be_opened_are_problems_and_those_beside_them_are_read(bucket: str, pattern: str) -> None:
    found, files = find(f"slashes{pattern}", bucket)
    assert found == ["slashes/a.jsonl", "slashes/deep/c.jsonl"]
    assert [path for path, _ in files.problems] == ["s3://keys/slashes//", "s3://keys/slashes/deep//"]
    assert all("objects whose keys have two slashes in a row" in why for _, why in files.problems)
    found, files = find(f"dots{pattern}", bucket)
    assert (found, len(files.problems)) == (["dots/b.jsonl"], 1)
