"""Label articles in SQL, and count them by topic.

python examples/duckdb_query.py examples/articles.csv
"""

import sys

import duckdb

import broadsheet

QUERY = """
select broadsheet(title || ' ' || text) as topic, count(*) as articles
from read_csv($source) group by topic order by articles desc
"""


def main(source: str, model: str = "ag-news") -> list[tuple[str, int]]:
    """Return topics and how many articles each has."""
    with duckdb.connect() as connection:
        broadsheet.duckdb.register(connection, model)
        return connection.execute(QUERY, {"source": source}).fetchall()


if __name__ == "__main__":
    for topic, articles in main(*sys.argv[1:]):
        print(f"{topic:<10} {articles:>6,}")
