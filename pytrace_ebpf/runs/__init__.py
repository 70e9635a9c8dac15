"""A recording while it runs: what is printed of it, who may ask something of it, and runs that are ordered one after another."""
