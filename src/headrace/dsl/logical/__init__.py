"""The logical graph of the DSL: its steps, its optimizations, and its lowering to topology nodes."""
