"""This module gives users' own scripts the agent's library: `trainloop.recovery` and `trainloop.progress`.

If the image or the job has its own `trainloop`, Python imports that package instead.
"""

import os
import sys

_this = sys.modules.pop(__name__)
_folder = os.path.dirname(os.path.dirname(__file__))
_at = sys.path.index(_folder)
# Apart from sitecustomize, this folder contains only trainloop, so other threads' imports don't need it while it is
# removed from the path.
del sys.path[_at]
try:
    __import__(__name__)
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
    sys.modules[__name__] = _this
    if sys.version_info < (3, 11):

        class _Newer:
            """Refuses everything but `trainloop.progress`, which runs on any Python."""

            @staticmethod
            def find_spec(name, path=None, target=None):
                if name.startswith(f"{__name__}.") and name != f"{__name__}.progress":
                    this = sys.version.split()[0]
                    raise ImportError(
                        f"{name} needs Python 3.11 or newer, and this is {this}; use an image that has it"
                    )

        sys.meta_path.insert(0, _Newer)
finally:
    sys.path.insert(_at, _folder)
