"""If a first request couldn't use a cluster, `ApiConnection.unusable` explains why, and what to do."""

from __future__ import annotations

import ssl
from unittest.mock import Mock

import pytest
from aiohttp import ClientConnectorCertificateError, ClientConnectorError
from kubernetes.aio.client import Configuration

from trainmaster_operator.controller.apiserver.connection import ApiConnection
from trainmaster_operator.controller.apiserver.errors import ClusterError, Unauthorized
from trainmaster_operator.controller.apiserver.pod_http import unreachable

URL = "https://10.0.0.1:6443"
KEY = Mock(host="10.0.0.1", port=6443)
OF_ANOTHER_AUTHORITY = ssl.SSLCertVerificationError("unable to get local issuer certificate")
OF_ANOTHER_AUTHORITY.verify_message = "unable to get local issuer certificate"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            unreachable("GET /api", ClientConnectorCertificateError(KEY, OF_ANOTHER_AUTHORITY)),
            f"the cluster at {URL} can't be trusted: the certificate of 10.0.0.1:6443 can't be verified: unable to get "
            "local issuer certificate; the kubeconfig's certificate-authority is not the one of this cluster: get a "
            "kubeconfig of it, or choose another context",
        ),
        (
            Unauthorized("GET /api", "Unauthorized", status=401),
            f"the cluster at {URL} doesn't know you (401 Unauthorized): the token or certificate may have expired; log "
            "in again, or choose another context",
        ),
        (
            unreachable("GET /api", ClientConnectorError(KEY, ConnectionRefusedError(111, "refused"))),
            f"the cluster at {URL} can't be used: GET /api: no connection to 10.0.0.1:6443: Connection refused",
        ),
    ],
    ids=["another authority", "unknown credentials", "nothing listens"],
)
def test_the_sentence_says_what_to_do(error: ClusterError, sentence: str) -> None:
    configuration = Configuration()
    configuration.host = URL
    assert ApiConnection(configuration, in_cluster=False).unusable(error) == sentence
