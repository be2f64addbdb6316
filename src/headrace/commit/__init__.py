"""Exactly once, without Spark: checkpoints, and the steps that lead from one batch to the next."""

from headrace.commit.coordinator import Coordinator, Habits, World
from headrace.commit.fingerprint import Fingerprint, fingerprint_of
from headrace.commit.handing import Attempt, Yield, hand_back
from headrace.commit.ledger import Ledger, read_ledger
from headrace.commit.receipt import Receipt, decode_receipt, encode_receipt, new_attempt
from headrace.commit.restore import LmdbHome, MemoryHome, Restored, restore
from headrace.commit.storage import Storage, open_storage

__all__ = [
    "Attempt", "Coordinator", "Fingerprint", "Habits", "Ledger", "LmdbHome", "MemoryHome", "Receipt", "Restored",
    "Storage", "World", "Yield", "decode_receipt", "encode_receipt", "fingerprint_of", "hand_back", "new_attempt",
    "open_storage", "read_ledger", "restore",
]  # fmt: skip
