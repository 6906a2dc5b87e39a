"""Uploads the user's code, so that a job needs no image for it: a folder becomes an archive that the pods mount.

- `archive` makes the same bytes from the same files, so the digest shows any change; it leaves out
  files that may hold secrets.
- `scripts` refuses an archive without the job's script.
- `submitting` writes code and job in the right order: `submit_with_code`, `push_code`. The code is in the job's
  ConfigMap.
- `claims` copies a larger archive onto a volume, with a pod of the job's own image.
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
