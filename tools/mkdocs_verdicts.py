"""Shows the pages on verdicts in the documentation: a hook of MkDocs, named in `mkdocs.yml`.

They lie in the package, since `headrace explain` prints them from an installed wheel. A link to their folder under `docs` would
be simpler, but hatchling visits a folder once, and a source distribution then has them under `docs` alone.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "headrace" / "diagnose"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each page as `explain/NAME.md`, as if it lay under `docs`."""
    for page in sorted((PACKAGE / "explain").glob("*.md")):
        files.append(File(f"explain/{page.name}", str(PACKAGE), config.site_dir, config.use_directory_urls))
    return files
