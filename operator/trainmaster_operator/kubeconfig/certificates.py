"""Certificates and keys are loaded once as TLS will load them, so that a broken one is said before any request."""

from __future__ import annotations

import ssl

from trainmaster_operator.kubeconfig.errors import KubeconfigError


def check_certificates(place: str, authority: str | None, certificate: str | None, key: str | None) -> None:
    """Raises KubeconfigError for a file that isn't what its field says. None stands for a field that isn't given."""
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
            # An empty password: a key that is encrypted is refused, and nobody is asked at a terminal.
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
