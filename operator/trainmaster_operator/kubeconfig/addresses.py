"""An address of a server is checked before anything is sent there."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from trainmaster_operator.kubeconfig.errors import KubeconfigError, shown


def require_address(place: str, value: Any, schemes: tuple[str, ...], remedy: str) -> None:
    """Raises KubeconfigError for what is no address with one of the schemes, whose sentence begins with `place`."""
    if not value:
        raise KubeconfigError(f"{place}: is missing; give {remedy}")
    try:
        address = urlsplit(value)
        usable = address.scheme in schemes and bool(address.hostname) and (address.port or 1) > 0
        # What a name that is no ASCII is asked for as; also how Python finds labels that are empty or too long.
        (address.hostname or "").encode("idna")
    except ValueError:
        usable = False
    if not usable or not value.isprintable() or any(character.isspace() for character in value):
        raise KubeconfigError(f"{place}: {shown(value)} is no address; give {remedy}")
