"""A checkpoint in an object store: S3, Google Cloud Storage, Azure, or memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self
from urllib.parse import parse_qsl

from obstore import store as obstore_store
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from headrace.commit.errors import MissingFileError, StorageError

_from_url: Callable[..., Any] = obstore_store.from_url  # pyright: ignore[reportUnknownMemberType] - of many overloads


# What obstore takes as options of its HTTP client; it does not survive finding them among those of the store.
_OF_THE_CLIENT = {"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout", "user_agent"}


class Objects:
    """Objects below a URL, made by conditional puts.

    >>> objects = Objects.at("memory:///", {})
    >>> objects.create("a/1", b"x"), objects.create("a/1", b"y"), objects.read("a/1"), objects.names("a/")
    (True, False, b'x', ['a/1'])
    """

    def __init__(self, store: Any, url: str, options: Mapping[str, str]) -> None:
        self._store, self._url, self._options = store, url, dict(options)

    @classmethod
    def at(cls, url: str, options: Mapping[str, str]) -> Self:
        """Options may also be in the URL, so that they travel with it: `s3://bucket/prefix?endpoint=http://host:9000`.

        What the URL and the options do not say comes from the environment: AWS_ENDPOINT, AWS_ACCESS_KEY_ID and so on.
        """
        place, _, query = url.partition("?")
        all_options: dict[str, str] = {**dict(parse_qsl(query)), **options}
        if all_options.get("endpoint", "").startswith("http://"):
            all_options.setdefault("allow_http", "true")
        of_client = {name: value for name, value in all_options.items() if name in _OF_THE_CLIENT}
        of_store = {name: value for name, value in all_options.items() if name not in _OF_THE_CLIENT}
        given = {**of_store, "client_options": of_client} if of_client else of_store
        try:
            return cls(_from_url(place, **given), place, all_options)
        except (BaseError, ValueError) as error:
            raise StorageError(f"{place} cannot be opened: {_first_line(error)}") from error

    def __reduce__(self) -> tuple[Callable[..., Objects], tuple[str, dict[str, str]]]:
        return Objects.at, (self._url, self._options)

    def describe(self) -> str:
        return self._url

    def create(self, name: str, data: bytes) -> bool:
        with self._failures(f"cannot take {name}"):
            try:
                self._store.put(name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            except FileNotFoundError as error:  # a bucket that is not there
                raise StorageError(f"{self._url} cannot take {name}: {_first_line(error)}") from error
            return True

    def read(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        with self._failures(f"cannot give {name}"):
            try:
                if size is not None and size > 0:
                    return bytes(self._store.get_range(name, start=start, length=size))
                return bytes(self._store.get(name).bytes())[start : None if size is None else start]
            except FileNotFoundError:
                raise MissingFileError(name, self._url) from None
            except GenericError:
                if size is None:
                    raise
                return self.read(name)[start : start + size]  # it may be shorter than the range

    def names(self, prefix: str = "") -> list[str]:
        with self._failures("cannot be listed"):
            folder = prefix.rpartition("/")[0]
            found = [entry["path"] for chunk in self._store.list(folder or None) for entry in chunk]
            return sorted(name for name in found if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._failures(f"cannot delete {name}"), suppress(FileNotFoundError):
            self._store.delete(name)

    @contextmanager
    def _failures(self, what: str) -> Generator[None]:
        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StorageError(
                f"{self._url} {what}: permission is missing ({_first_line(error)}). Check the credentials and policies"
            ) from error
        except BaseError as error:
            raise StorageError(f"{self._url} {what}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """What obstore says, without the debugging that follows."""
    return str(error).partition("\n")[0]
