"""A job can run the user's code without an image: a folder becomes an archive, which is put where the pods mount it.

- `archive` makes the same bytes from the same files, so the digest shows whether anything has changed; it leaves out
  files that may hold secrets.
- `scripts` refuses an archive that lacks the script that the job runs.
- `submitting` writes code and job in the right order: `submit_with_code`, `push_code`. The code is in the job's
  ConfigMap.
- `claims` copies what is too large for that onto a volume, by a pod of the job's own image.
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
