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
    if sys.version_info < (3, 11):
        _version = sys.version.split()[0]
        _sentence = f"trainloop needs Python 3.11 or newer, and this is {_version}; use an image that has it"
        raise ImportError(_sentence) from None
    sys.modules[__name__] = _this
finally:
    sys.path.insert(_at, _folder)
