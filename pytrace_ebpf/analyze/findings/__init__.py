"""What a report opens with: where the time of a program at work goes, why, and at which line of its own code.

`contexts.py` finds the own code in the tree, `waited.py` adds up what it waits for, `locks.py` looks at who has a lock meanwhile, `rules.py` says which
row is which finding, `sentences.py` says it, and `findings.py` puts it together.
"""
