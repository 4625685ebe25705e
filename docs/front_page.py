"""Make README.md the front page of the site, with links as the site has them."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ELSEWHERE = re.compile(r"\[([^\[\]]+)\]\((?!https?:|docs/)[^)]*\)")  # links to files that are no pages of the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page."""
    text = Path(config.config_file_path).with_name("README.md").read_text("utf-8")
    page = ELSEWHERE.sub(r"\1", text).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=page))
    return files
