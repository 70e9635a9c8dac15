"""What is killed, missing, full, stopped or too much, one fault a test: `make test-faults` tries each several times and writes docs/faults.md.

A test's docstring is the fault, as the page has it. What it loses and what is said it hands to its scene, which holds that nothing is left.
"""
