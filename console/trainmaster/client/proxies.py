"""A proxy is the kubeconfig's, or else the environment's, with the rules of NO_PROXY that kubectl has (Go's httpproxy).

A kubeconfig's proxy is for its cluster, so NO_PROXY doesn't count for it.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies_environment


def environment_proxy(address: str) -> str | None:
    """Returns the proxy that HTTPS_PROXY or HTTP_PROXY names for an address, or None."""
    variables = getproxies_environment()
    parts = urlsplit(address)
    proxy = variables.get(parts.scheme)
    if not proxy or _is_excepted(parts.hostname or "", parts.port, parts.scheme, variables.get("no", "")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_excepted(host: str, port: int | None, scheme: str, rules: str) -> bool:
    own_port = str(port or {"http": 80, "https": 443}[scheme])
    number = _number(host)
    if host == "localhost" or (number is not None and number.is_loopback):
        return True
    for rule in filter(None, (rule.strip().lower() for rule in rules.split(","))):
        if rule == "*":
            return True
        if number is not None and "/" in rule:
            if number in _network(rule):
                return True
            continue
        name, separator, wanted = rule.rpartition(":")
        if not separator or not wanted.isdigit() or _number(rule) is not None:
            name, wanted = rule, own_port
        name = name.strip("[]").removeprefix("*")
        if wanted != own_port:
            continue
        if host == name or host.endswith(name if name.startswith(".") else f".{name}"):
            return True
    return False


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _network(rule: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | tuple[()]:
    try:
        return ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return ()
