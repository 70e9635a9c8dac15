"""One file per command, beside main.py, which finds them."""
