"""This package contains mistakes that people make in a job's manifest, each with the sentence that both sides answer.

Each YAML file is one theme. Its entries are below `refused` or `accepted` (odd, and right):

    theme: podTemplate, names of fields
    refused:
      - name: enviroment for env            # the mistake; also the job's name
        worker: |                           # the manifest, as it was written
          enviroment: [{name: A, value: b}]
        validate: "spec.podTemplate.spec.containers[0].enviroment: unknown field; did you mean env?"
        online: operator                    # the side that refuses it in a cluster

`file` is a whole file. The other keys are a part of an otherwise correct job: `metadata`, `spec`, and with `workers: 1`
in the spec `training`, `pod` (podTemplate.spec) and `worker` (the worker's container beside its name).

`validate` is the whole output of `trainmaster validate`, one sentence or a list, without the place in the file. A
sentence that begins with a line's number (`7:3: not YAML: …`) includes its place.

`online` names the side that refuses the manifest on `kubectl apply`:

| online | refused by |
|---|---|
| `rule`, or no value | the API server, by CEL of `api/rules.py`, with the sentences of `validate` |
| `operator` | the operator, in the condition Failed with reason InvalidSpec, with the sentences of `validate` |
| `{schema: …}` | the API server in its own words, of which this is a part |
| `{kubectl: …}` | kubectl before it sends anything, in its own words, of which this is a part |
| `{nobody: why}` | nobody, because kubectl loses what is wrong before it sends the rest |

`{rule: …}` and `{operator: …}` with a text are for sentences that differ from those of `validate`. Accepted manifests
have no `online`: `validate` prints that they are valid (beside the lines of `validate`, if any), the API server accepts
them, and the operator makes their StatefulSets.

`entries` reads the files, `offline` and `online` ask the two sides, `agreement` compares their answers with an entry,
and `make mistakes` (`__main__`) prints everything as a table. `unit` contains the tests without a cluster, `cluster`
those with one.
"""
