"""pytest imports all modules to find doctests; the programs with mistakes cannot be imported."""

collect_ignore_glob = ["programs/*mistakes.py"]
