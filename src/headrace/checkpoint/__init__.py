"""Exactly-once checkpoints, independent of Spark: what is committed, how it is stored, delivered and restored.

    tasks run → Receipt → Coordinator.commit → Manifest N created: the batch is committed → Delivery → log

Start with `coordinator` (the protocol), `files` (what a checkpoint has in it) and `ledger` (what it means).
"""
