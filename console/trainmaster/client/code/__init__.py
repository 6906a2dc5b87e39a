"""Uploads the user's code, so that a job needs no image for it: a folder becomes an archive that the pods mount.

- `archive` makes equal archives from equal files, so the digest shows any change. It leaves out files that may contain
  secrets.
- `scripts` refuses an archive that lacks the job's script.
- `submitting` writes the code into a ConfigMap and submits the job, in the right order: `submit_with_code`,
  `push_code`.
- `storing` reads and writes ConfigMaps and pods for `submitting` and `claims`.
- `claims` copies an archive that is too large for a ConfigMap onto a volume, using a pod with the job's own image.
"""

from trainmaster.client.code.archive import Archive, archive_files, archive_folder
from trainmaster.client.code.submitting import Pushed, push_code, submit_with_code

__all__ = ["Archive", "Pushed", "archive_files", "archive_folder", "push_code", "submit_with_code"]
