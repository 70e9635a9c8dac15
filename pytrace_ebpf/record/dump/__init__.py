"""What a process does right now, without eBPF and without stopping it: the stacks of its threads (threads.py), and what they wait for (resources.py)."""
