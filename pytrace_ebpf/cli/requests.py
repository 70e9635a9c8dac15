"""What `--request` takes, the same in every command."""

REQUEST = "these functions answer requests too: QUALNAME, MODULE:QUALNAME or FILE:QUALNAME with * in any of them; may be given several times"
