"""Jobs are in situations, each with the cause that a person names, and a cluster answers from these situations.

The YAML files contain situations that need real schedulers, registries, queues or GPUs, built from the messages that
these print. `recorded.yaml` names those recorded from the embedded cluster and the real operator (`recorded/`, made by
`python -m tests.why.record`). `person` is the cause as a person would put it, `cause` is its word in the answer, and
the answer's sentence must contain `says`. They were written before the answers were.

`python -m tests.why` prints the table: the situation, the expected answer, the actual one, and whether that is right.
"""
