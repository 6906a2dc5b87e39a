"""Situations of jobs, each with the cause that a person names, and a cluster that answers from them.

The YAML files hold situations that need real schedulers, registries, queues or GPUs, built from the messages that these
print; `recorded.yaml` names those that the embedded cluster and the real operator were in (`recorded/`, made by
`python -m tests.why.record`). `person` is the cause as a person would say it, `cause` is its word in the answer, and
the answer's sentence must contain `says`. They were written before the answers.

`python -m tests.why` prints the table: the situation, what is expected, what is answered, and whether that is right.
"""
