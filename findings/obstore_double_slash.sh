#!/usr/bin/env bash
# One key with two slashes in a row hides all other objects from obstore 0.12.1, and a folder's mark has another name.
#
# S3 allows the key data//b.txt. obstore.list raises InvalidPathError for the whole page of up to 1,000 keys that it is
# in, list_with_delimiter for the folder, and there is no option to go on. The key runs/x.csv/, which the AWS console
# makes for a folder, is listed as runs/x.csv, and there is no such object.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q obstore==0.12.1 "moto[s3,server]==5.2.5" boto3==1.44.8
cd "$folder"
venv/bin/python - <<'END'
import logging

import boto3
import obstore
from moto.server import ThreadedMotoServer
from obstore.exceptions import InvalidPathError

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
host, port = server.get_host_and_port()
endpoint, keys = f"http://{host}:{port}", {"aws_access_key_id": "x", "aws_secret_access_key": "y"}
client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
client.create_bucket(Bucket="bucket")
for key in ("data/a.txt", "data//b.txt", "data/c.txt", "runs/x.csv/"):
    client.put_object(Bucket="bucket", Key=key, Body=b"" if key.endswith("/") else b"text")
config = {"access_key_id": "x", "secret_access_key": "y", "region": "us-east-1"}
store = obstore.store.S3Store("bucket", endpoint=endpoint, client_options={"allow_http": True}, config=config)
for call in (lambda: list(obstore.list(store, "data")), lambda: obstore.list_with_delimiter(store, "data")):
    try:
        call()
    except InvalidPathError as error:
        print(str(error).splitlines()[0])
    else:
        raise SystemExit("obstore lists it")
(listed,) = [about["path"] for page in obstore.list(store, "runs") for about in page]
print("listed:", listed)
assert listed == "runs/x.csv"
try:
    obstore.head(store, listed)
except FileNotFoundError:
    print("not found:", listed)
else:
    raise SystemExit("it is there")
server.stop()
END
