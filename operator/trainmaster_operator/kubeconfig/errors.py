"""Checks addresses, certificates and keys, and defines the error for every problem with a kubeconfig."""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

MAX_SHOWN = 100


class KubeconfigError(Exception):
    """The kubeconfig can't be used. `str()` names the file, the field, the value and the correct form."""


def shown(value: Any) -> str:
    """Quotes a kubeconfig's value for a message. Don't use this for secrets; name only their field."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def one_of(names: list[str]) -> str:
    """Returns the choices as a text for a message."""
    return ", ".join(shown(name) for name in names[:10]) + (", ..." if len(names) > 10 else "") if names else "none"


def require_address(place: str, value: Any, schemes: tuple[str, ...], remedy: str) -> None:
    """Raises KubeconfigError, which begins with `place`, unless the value is an address with one of the schemes."""
    if not value:
        raise KubeconfigError(f"{place}: is missing; give {remedy}")
    try:
        address = urlsplit(value)
        usable = address.scheme in schemes and bool(address.hostname) and (address.port or 1) > 0
        # This encoding is used to resolve names that aren't ASCII. It also finds labels that are empty or too long.
        (address.hostname or "").encode("idna")
    except ValueError:
        usable = False
    if not usable or not value.isprintable() or any(character.isspace() for character in value):
        raise KubeconfigError(f"{place}: {shown(value)} is no address; give {remedy}")


def check_certificates(place: str, authority: str | None, certificate: str | None, key: str | None) -> None:
    """Raises KubeconfigError if a file's content doesn't fit its field. None means that the field isn't set."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority:
        try:
            context.load_verify_locations(cafile=authority)
        except (ssl.SSLError, OSError) as error:
            raise KubeconfigError(
                f"{place}: certificate-authority: holds no certificate that can be loaded "
                f"({_reason(error)}); give one in PEM"
            ) from error
    if certificate:
        try:
            # With the empty password, an encrypted key is refused. Without it, the user would be prompted.
            context.load_cert_chain(certificate, keyfile=key, password="")
        except (ssl.SSLError, OSError) as error:
            raise KubeconfigError(
                f"{place}: client-certificate and client-key: can't be loaded ({_reason(error)}); give a "
                "certificate and its key in PEM, unencrypted"
            ) from error


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not PEM").lower().replace("_", " ")
    return error.strerror or "it is not PEM"
