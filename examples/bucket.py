"""Label articles in a bucket into the same bucket: in S3, Google Cloud Storage, Azure, or a store of your own.

AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… python examples/bucket.py s3://bucket/folder http://localhost:9000
"""

import sys
from pathlib import Path

import obstore
from obstore.store import from_url

import broadsheet

ARTICLES = Path(__file__).with_name("articles.csv")


def main(url: str, endpoint: str | None = None) -> int:
    """Put a file of articles below the URL on each of two days, label it, and check all labels at the end.

    endpoint: the address of a compatible store, such as MinIO. Returns the exit code of the second day's job.
    """
    days = from_url(
        f"{url}/articles/", client_options={"allow_http": True}, **({"endpoint": endpoint} if endpoint else {})
    )
    for day in ("monday", "tuesday"):
        obstore.put(days, f"{day}.csv", ARTICLES.read_bytes())
        report = broadsheet.classify(
            f"{url}/articles",
            f"{url}/labels",
            endpoint=endpoint,
            text_column=["title", "text"],
            id_column="id",
            update=True,  # each day: only the files that are new
        )
        print(report)
    totals = broadsheet.verify(f"{url}/labels", endpoint=endpoint)
    print(f"{url}/labels: {totals.rows_written:,} labels of {totals.rows_read:,} articles")
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
