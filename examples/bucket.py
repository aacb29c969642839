"""Labels into a bucket, from articles in one: S3, Google Cloud Storage or Azure, or a server of your own.

AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… python examples/bucket.py s3://bucket/folder http://localhost:9000
"""

import sys
from pathlib import Path

import obstore
from obstore.store import from_url

import broadsheet

ARTICLES = Path(__file__).with_name("articles.csv")


def main(url: str, endpoint: str | None = None) -> int:
    """Put articles there, label them as of two days, and check the labels. endpoint: of a compatible store."""
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
