"""Generated inputs, a fixed number of them; those that once found a fault are in corpus/ and are tried first."""

import json
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parent / "corpus"


def found(kind: str) -> list[Any]:
    """What was found of one kind, as the test of that kind takes it."""
    return json.loads((CORPUS / f"{kind}.json").read_text())
