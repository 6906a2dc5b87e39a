"""This package runs one container.

| to read | what it does |
|---|---|
| `container`, `backoff` | the container's starts and ends, and the wait between two runs |
| `launch`, `environment`, `paths` | from the manifest to the program: variables, command, paths of this machine |
| `runtime`, `shim` | processes, and their monitor: nothing outlives the cluster |
| `fake` | a runtime without processes, for thousands of pods |
| `probes`, `stopping`, `logs` | probes; hooks and signals at the end; the output as `kubectl logs` reads it |
"""
