"""A simulated object store: the real `ObjectStorage` on a store that is slow, fails, and loses answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from obstore.exceptions import AlreadyExistsError, GenericError

from headrace.checkpoint.storage import ObjectStorage
from tests.simulation.faults import Faults
from tests.simulation.scheduler import Process


class Bucket:
    """The objects, which survive every process. `on_create` and `on_delete` hear of every change."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.on_create: Callable[[str, bytes], None] = lambda name, data: None
        self.on_delete: Callable[[str], None] = lambda name: None

    @contextmanager
    def in_use(self) -> Generator[None]:
        """The run is between the beginning and the end of this."""
        yield

    def storage(self, process: Process, faults: Faults) -> Any:
        """The storage of one process."""
        return ObjectStorage(_Client(self, process, faults), "s3://simulated", {})


class _Found:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def bytes(self) -> bytes:
        return self._data


class _Client:
    """What `ObjectStorage` uses of obstore."""

    def __init__(self, bucket: Bucket, process: Process, faults: Faults) -> None:
        self._bucket, self._process, self._faults = bucket, process, faults

    def _pass_time(self) -> None:
        random = self._process.scheduler.random
        is_slow = self._faults.happens("storage is slow")
        self._process.sleep(random.uniform(0.5, 20.0) if is_slow else random.expovariate(300))

    def _begin(self, what: str) -> None:
        self._process.check()
        self._process.scheduler.note(f"{self._process} {what}")
        self._pass_time()
        if self._faults.happens("storage fails"):
            raise GenericError(f"{what}: the request did not arrive")

    def _end(self, what: str) -> None:
        self._pass_time()
        if self._faults.happens("storage loses its answer"):
            raise GenericError(f"{what}: no answer")

    def put(self, name: str, data: bytes, *, mode: str, use_multipart: bool) -> None:
        assert mode == "create", "the checkpoint creates files, and never changes one"
        self._begin(f"creates {name}")
        exists = name in self._bucket.objects
        if not exists:
            self._bucket.objects[name] = bytes(data)
            self._bucket.on_create(name, bytes(data))
            exists = self._faults.happens("storage asks twice")
        self._end(f"creates {name}")
        if exists:
            raise AlreadyExistsError(name)

    def _read(self, name: str) -> bytes:
        self._begin(f"reads {name}")
        if name not in self._bucket.objects:
            raise FileNotFoundError(name)
        data = self._bucket.objects[name]
        self._pass_time()
        return data

    def get(self, name: str) -> _Found:
        return _Found(self._read(name))

    def get_range(self, name: str, *, start: int, length: int) -> bytes:
        return self._read(name)[start : start + length]

    def list(self, prefix: str | None) -> Iterator[list[dict[str, Any]]]:
        self._begin(f"lists {prefix}")
        found = [name for name in self._bucket.objects if not prefix or name.startswith(f"{prefix}/")]
        self._pass_time()
        yield [{"path": name} for name in found]

    def delete(self, name: str) -> None:
        self._begin(f"deletes {name}")
        if self._bucket.objects.pop(name, None) is not None:
            self._bucket.on_delete(name)
        self._end(f"deletes {name}")
