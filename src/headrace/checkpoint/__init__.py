"""Exactly once, without Spark: checkpoints, and the steps that lead from one batch to the next."""

from headrace.checkpoint.coordinator import CommitHooks, CommitOptions, Coordinator
from headrace.checkpoint.fingerprint import Fingerprint, fingerprint_of
from headrace.checkpoint.ledger import Ledger, read_ledger
from headrace.checkpoint.receipt import Attempt, Receipt, Yield, decode_receipt, encode_receipt, hand_back, new_attempt
from headrace.checkpoint.restore import LmdbEngines, MemoryEngines, Restored, restore
from headrace.checkpoint.storage import Storage, open_storage

__all__ = [
    "Attempt",
    "CommitHooks",
    "CommitOptions",
    "Coordinator",
    "Fingerprint",
    "Ledger",
    "LmdbEngines",
    "MemoryEngines",
    "Receipt",
    "Restored",
    "Storage",
    "Yield",
    "decode_receipt",
    "encode_receipt",
    "fingerprint_of",
    "hand_back",
    "new_attempt",
    "open_storage",
    "read_ledger",
    "restore",
]  # fmt: skip
