"""The user's code comes to a job without an image: a folder becomes an archive, which is put where the pods mount it.

- `archive` makes the same bytes of the same files, so that the digest says whether anything has changed.
- `secret_files` says which files are left out because they may hold secrets.
- `scripts` refuses an archive that lacks the script that the job runs.
- `places` writes them into the job's ConfigMap.
- `claims` brings what is too large for that onto a volume, by a pod of the job's own image.
- `submitting` puts both in order with the job: `submit_with_code`, `push_code`.
"""

from trainmaster.client.code.archive import Archive, archive_files, archive_folder
from trainmaster.client.code.submitting import Pushed, push_code, submit_with_code

__all__ = [
    "Archive",
    "Pushed",
    "archive_files",
    "archive_folder",
    "push_code",
    "submit_with_code",
]
