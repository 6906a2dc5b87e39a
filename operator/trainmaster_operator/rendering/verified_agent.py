"""Run the agent at argv[2] if its SHA-256 is argv[1]: anyone who may write ConfigMaps could have put another there."""

import sys

# Python puts the working directory first, and a file in it must not stand in for a module.
sys.path[:] = [folder for folder in sys.path if folder]

import hashlib
import os
import zipimport

expected, path = sys.argv[1:3]
del sys.argv[1:3]
try:
    with open(path, "rb") as file:
        agent = file.read()
except OSError:
    agent = b""
if hashlib.sha256(agent).hexdigest() != expected:
    sentence = (
        f"the ConfigMap trainmaster-agent-{expected} has another agent than the operator has put there, so it isn't "
        "run; find out who may write ConfigMaps here, delete it and the job's pods: both are made again"
    )
    print(f"[agent]: {sentence}", file=sys.stderr)
    with open(os.environ["TRAINMASTER_TERMINATION_LOG"], "w", encoding="utf-8") as file:
        file.write(sentence)
    sys.exit(65)
# Its modules are read when they are imported, perhaps after the volume has changed: from a copy without a name.
copy = os.path.join(os.environ["TRAINMASTER_STATE_DIR"], f".agent-{os.urandom(8).hex()}")
descriptor = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.unlink(copy)
with open(descriptor, "wb", closefd=False) as file:
    file.write(agent)
sys.path.insert(0, f"/proc/self/fd/{descriptor}")
exec(zipimport.zipimporter(sys.path[0]).get_code("__main__"))
