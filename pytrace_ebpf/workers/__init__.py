"""A file per worker process: self_command.py starts main() of it, and nothing imports it."""
