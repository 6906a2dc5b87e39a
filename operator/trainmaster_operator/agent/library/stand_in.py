"""This is the library for scripts of one's own that the agent brings: `trainloop.recovery` and `trainloop.progress`.

Where the image or the job has a `trainloop` of its own, that one is imported in its place.
"""

import os
import sys

_this = sys.modules.pop(__name__)
_folder = os.path.dirname(os.path.dirname(__file__))
_at = sys.path.index(_folder)
# Nothing but trainloop is below it, so another thread's imports lack nothing meanwhile.
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
