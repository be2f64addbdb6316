"""The door of a broker for users: a listener with TLS and SASL, a certificate made on the spot, and ACLs."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from headrace.errors import StreamsError

_PASSWORD = "headrace"  # noqa: S105 - of a certificate that is made for a test
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Door:
    """A listener at `port` of 127.0.0.1 for users, passwords by name."""

    def __init__(self, directory: Path, java: str, port: int, users: Mapping[str, str]) -> None:
        self.port, self._users = port, users
        self._store, self._certificate = directory / "broker.p12", directory / "broker.pem"
        if not self._certificate.exists():
            self._make_certificate(Path(java).resolve().with_name("keytool"))

    def _make_certificate(self, keytool: Path) -> None:
        common = ["-alias", "broker", "-keystore", str(self._store), "-storepass", _PASSWORD, "-storetype", "PKCS12"]
        names = ["-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1", "-validity", "3650"]
        for action in (
            ["-genkeypair", "-keyalg", "RSA", "-keysize", "2048", *names],
            ["-exportcert", "-rfc", "-file", str(self._certificate)],
        ):
            done = subprocess.run([str(keytool), *action, *common], capture_output=True, text=True, check=False)  # noqa: S603
            if done.returncode:
                raise StreamsError(f"{keytool} could not make a certificate: {done.stdout}{done.stderr}")

    def broker_settings(self, plain: int, controller: int) -> dict[str, str]:
        """What the broker needs beside the rest; whoever comes through the plain listener may do everything."""
        known = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
        return {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{self.port},"
            f"CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},USERS://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,USERS:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": f"{_PLAIN} required {known};",
            "listener.name.users.ssl.keystore.location": str(self._store),
            "listener.name.users.ssl.keystore.type": "PKCS12",
            "listener.name.users.ssl.keystore.password": _PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def client_settings(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self._users[user],
            "ssl.ca.location": str(self._certificate),
        }
