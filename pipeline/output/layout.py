"""The names of an output folder's folders and files."""

PARTS, QUARANTINE, ENTRIES, RUNS = "parts", "quarantine", "_entries", "_runs"
TEMPORARY = ".tmp"
MANIFEST, PLAN, SUCCESS = "manifest.json", "_plan.json", "_SUCCESS"
