"""Shows pages that lie outside `docs` in the documentation: a hook of MkDocs, named in `mkdocs.yml`.

The pages on verdicts lie in the package, since `headrace explain` prints them from an installed wheel, and dated results beside
the benchmarks that wrote them. Pages link to both where they are, so that the links work in any viewer of the repository; here
those links are turned to where the pages stand in the documentation. A link to a folder under `docs` would be simpler, but
hatchling visits a folder once, and a source distribution then has it under `docs` alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Folders of pages, and the folder that they lie in; under the name of the first they appear in the documentation.
OUTSIDE = {"explain": ROOT / "src" / "headrace" / "diagnose", "results": ROOT / "benchmarks"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each page as `FOLDER/NAME.md`, as if it lay under `docs`."""
    for folder, parent in OUTSIDE.items():
        for page in sorted((parent / folder).glob("*.md")):
            files.append(File(f"{folder}/{page.name}", str(parent), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Turn links to such pages to where the documentation has them."""
    for folder, parent in OUTSIDE.items():
        outside = f"{parent.relative_to(ROOT)}/{folder}/"
        up = "../" * page.file.src_uri.count("/")
        markdown = re.sub(rf"\]\((\.\./)+{re.escape(outside)}", f"]({up}{folder}/", markdown)
    return markdown
