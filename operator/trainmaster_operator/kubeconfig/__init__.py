"""Kubeconfigs are read here as kubectl reads them, and each thing that is wrong with one is a sentence.

The official client's loader raises whatever its dictionaries raise, passes over users and plugins that aren't there,
and waits for a plugin for ever. So it gets what `selection` has checked, with what the plugin answered in it.

| module | what is in it |
|---|---|
| `files` | finds the files, reads and merges them |
| `selection` | `read_kubeconfig`: the context with its cluster and user, checked; read it first |
| `plugin` | runs a user's exec plugin for its credentials |
| `addresses` | checks the addresses of servers |
| `certificates` | checks the files of certificates and keys as TLS will load them |
| `errors` | `KubeconfigError` |
"""

from trainmaster_operator.kubeconfig.addresses import require_address
from trainmaster_operator.kubeconfig.certificates import check_certificates
from trainmaster_operator.kubeconfig.errors import KubeconfigError
from trainmaster_operator.kubeconfig.plugin import Credentials, Plugin
from trainmaster_operator.kubeconfig.selection import Kubeconfig, read_kubeconfig

__all__ = [
    "Credentials",
    "Kubeconfig",
    "KubeconfigError",
    "Plugin",
    "check_certificates",
    "read_kubeconfig",
    "require_address",
]
