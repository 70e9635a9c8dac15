"""One file per command; only here is anything printed or exited."""
