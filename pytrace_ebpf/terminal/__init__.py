"""The terminal and the process's standard files and signals, as all commands use them."""
