"""Reads kubeconfigs as kubectl does, and reports each problem in a readable message.

The official client's loader raises errors such as KeyError for wrong content, ignores missing users and plugins, and
waits for a plugin without a limit. So the loader gets a kubeconfig that `selection` has checked, and that already
contains the plugin's answer.

`selection` contains `read_kubeconfig`, which finds and merges the files, and checks the chosen context with its cluster
and user. `plugin` runs a user's exec plugin to get credentials. `errors` contains `KubeconfigError`, and checks
addresses, certificates and keys.
"""

from trainmaster_operator.kubeconfig.errors import KubeconfigError, check_certificates, require_address
from trainmaster_operator.kubeconfig.plugin import Credentials, Plugin
from trainmaster_operator.kubeconfig.selection import Kubeconfig, read_kubeconfig
