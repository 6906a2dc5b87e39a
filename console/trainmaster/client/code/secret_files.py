"""Files that usually hold secrets never enter an archive unless a `.trainmasterignore` names them, such as `!.env`.

Everybody who may read the namespace's ConfigMaps can read a job's code. A `.gitignore` can't name secrets: it is about
git.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# As lines of a .gitignore.
SECRET_FILES = (
    # Environment files, without the examples that projects publish.
    *(".env", ".env.*", "*.env", ".envrc", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist"),
    # Private keys and their stores.
    *("*.key", "*.pem", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx", ".ssh/", ".gnupg/"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"),
    # Clouds, clusters and registries.
    *(
        ".aws/",
        ".azure/",
        ".gcloud/",
        "**/.config/gcloud/",
        ".boto",
        ".s3cfg",
        ".oci/",
        "application_default_credentials.json",
    ),
    *("credentials.json", "client_secret*.json", "service-account*.json", "service_account*.json"),
    *(
        "**/.kube/config",
        "kubeconfig",
        "*.kubeconfig",
        ".docker/",
        ".dockercfg",
        ".vault-token",
        "*.tfstate",
        "*.tfvars",
    ),
    # Tokens of package indexes, hubs and databases.
    *(".netrc", "_netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".htpasswd"),
    *(".huggingface/", "**/huggingface/token", "**/huggingface/stored_tokens", "**/.kaggle/", "kaggle.json"),
    # Histories of shells and interpreters.
    *(".*_history", ".*history", ".*_hist", ".lesshst", ".viminfo"),
)
# The first bytes of a private key in PEM, under any name.
_PEM, _PRIVATE = b"-----BEGIN ", b"PRIVATE KEY-----"


@cache
def secret_files() -> GitIgnoreSpec:
    """Returns what matches the paths of secrets."""
    # Here, because no other command needs it.
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(SECRET_FILES)


def is_private_key(content: bytes) -> bool:
    """Returns whether a file is a private key in PEM."""
    first, _, _ = content[:200].lstrip().partition(b"\n")
    return first.startswith(_PEM) and first.rstrip().endswith(_PRIVATE)
