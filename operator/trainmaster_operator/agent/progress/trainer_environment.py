"""The environment that makes Hugging Face's Trainer report to the agent. Pure."""

from __future__ import annotations

from collections.abc import Mapping

ADDRESS, PATH = "127.0.0.1", "/v1/trainer-status"
URL, TOKEN = "KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"
_PROXIES, _NO_PROXIES = ("http_proxy", "HTTP_PROXY"), ("no_proxy", "NO_PROXY")


def trainer_environment(port: int, token_file: str, base: Mapping[str, str]) -> dict[str, str]:
    """Returns what makes a Trainer report to this port; nothing where the user has it report elsewhere.

    A proxy for HTTP would be asked for the loopback address too, where `no_proxy` doesn't name it (urllib.request).
    """
    if not port or any(name in base for name in (URL, TOKEN)):
        return {}
    variables = {URL: f"http://{ADDRESS}:{port}{PATH}", TOKEN: token_file}
    if any(base.get(name) for name in _PROXIES):
        spared = next((base[name] for name in _NO_PROXIES if base.get(name)), "")
        if spared != "*":
            variables["no_proxy"] = f"{spared},{ADDRESS}".lstrip(",")
    return variables
