"""Exactly-once checkpoints, independent of Spark: what is committed, how it is stored, delivered and restored.

    tasks run → Receipt → Coordinator.commit → Manifest N created: the batch is committed → Delivery → log

Start with `coordinator` (the protocol), `files` (what a checkpoint has in it) and `ledger` (what it means).
"""

from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint, compute_fingerprint
from headrace.checkpoint.ledger import Ledger, read_ledger
from headrace.checkpoint.receipt import Receipt, complete_receipt, decode_receipt, encode_receipt, new_attempt
from headrace.checkpoint.restore import LmdbEngineProvider, MemoryEngineProvider, Restored, restore
from headrace.checkpoint.storage import Storage, open_storage

__all__ = [
    "CommitHooks",
    "CommitOptions",
    "Coordinator",
    "Fingerprint",
    "Ledger",
    "LmdbEngineProvider",
    "MemoryEngineProvider",
    "Receipt",
    "Restored",
    "Storage",
    "complete_receipt",
    "compute_fingerprint",
    "decode_receipt",
    "encode_receipt",
    "new_attempt",
    "open_storage",
    "read_ledger",
    "restore",
]  # fmt: skip
