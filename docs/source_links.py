"""A hook of mkdocs: links from a page to a file of the repository outside docs/ lead to that file on GitHub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(\.\./([^)#\s]+)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links of a page; one to a file that does not exist ends the build."""

    def on_github(link: re.Match[str]) -> str:
        if not (ROOT / link[1]).exists():
            raise PluginError(f"{page.file.src_uri} links to ../{link[1]}, which does not exist")
        return f"]({config.extra['repository']}/blob/main/{link[1]}"

    return LINK.sub(on_github, markdown)
