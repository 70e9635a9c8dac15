"""Generated documents are what their generator would write now."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_format_document_is_the_schema() -> None:
    subprocess.run([sys.executable, "scripts/generate_docs.py", "--check"], cwd=REPOSITORY, check=True)
