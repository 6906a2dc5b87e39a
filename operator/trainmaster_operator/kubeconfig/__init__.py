"""Reads kubeconfigs as kubectl does, and reports each problem of one in a sentence.

The official client's loader lets its dictionaries' errors through, ignores missing users and plugins, and waits for a
plugin forever. So it gets a kubeconfig that `selection` has checked, with the plugin's answer in it.

`selection` has `read_kubeconfig`: it finds and merges the files, and checks the chosen context with its cluster and
user. `plugin` runs a user's exec plugin for its credentials. `errors` has `KubeconfigError`, and the checks of
addresses, certificates and keys.
"""

from trainmaster_operator.kubeconfig.errors import KubeconfigError, check_certificates, require_address
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
