"""What a traced program wrote, made harmless for a terminal and for lines of text: no control characters, no escape sequences."""


def printable(text: str) -> str:
    """`text` with a space for every line break or tab and a question mark for whatever else a terminal would not show as a character."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)
