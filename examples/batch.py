"""Run a job from a script: label the articles of new files. The summary goes to stdout as JSON, progress to stderr.

python examples/batch.py examples/articles.csv labels
"""

import json
import sys

import broadsheet
from broadsheet.cluster import connect
from broadsheet.pipeline.errors import BroadsheetError


def main(source: str, output: str) -> int:
    """Classify on this machine's cores. Returns the exit code that the command has (docs/output.md)."""
    try:
        with connect("local") as client:
            report = broadsheet.classify(source, output, text_column=["title", "text"], client=client, update=True)
    except BroadsheetError as error:
        print(f"batch: {error}", file=sys.stderr)
        return error.exit_code
    json.dump(report.to_dict(), sys.stdout, indent=1)
    return report.exit_code


if __name__ == "__main__":  # worker processes import this file too
    sys.exit(main(*sys.argv[1:]))
