"""The documentation as a site: in headless Chromium, opened as files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

pytest.importorskip("mkdocs", reason="the documentation's tools are not installed (pip install '.[docs]')")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    subprocess.run(command, cwd=ROOT, check=True, env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"})
    return folder


def test_each_page_opens_as_a_file_and_asks_no_other_host(site: Path) -> None:
    """From the first page on, by the links that a reader sees; each leads to a file."""
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no Chromium on the PATH (on Debian: apt-get install chromium)")
    asked: set[str] = set()
    seen, waiting = set[str](), [(site / "index.html").as_uri()]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.add(request.url.partition("?")[0]))
        while waiting:
            address = waiting.pop()
            seen.add(address)
            page.goto(address)
            links: list[Any] = page.eval_on_selector_all("a[href]", "found => found.map(a => a.href.split('#')[0])")
            ours = {link for link in links if link.startswith("file:")}
            waiting += [link for link in ours if link.endswith(".html") and link not in (*seen, *waiting)]
            assert [link for link in ours if not Path(link.removeprefix("file://")).is_file()] == []
        browser.close()
    assert len(seen) == len(list((ROOT / "docs").glob("*.md")))
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
