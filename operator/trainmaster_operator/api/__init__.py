"""This package has the custom resource: its models, the CRD made from them, and what is checked when a job is read.

Start with `v1alpha1`, the models of spec and status. `crd` makes the CustomResourceDefinition of them, with the rules
between fields that `rules` writes once for Python and once in CEL (`rule` is what one is). `parsing` reads a job as a
user wrote it and says everything that is wrong (`problems`): `field_messages` and `wrong_types` for fields and values,
with the name that was meant (`nearest`) or the place where it belongs (`misplaced`), `limits` for sizes, `metadata` and
`labels`, `pod_template` for what a podTemplate can't change, `pod_schema` for what Kubernetes refuses in it, `paths`
for whose paths are whose, `words` for those of the command, `training_schema` for the bundled loop's configuration;
`merge` merges it as Kubernetes does. `values`, `quantities`, `accelerator_names` are kinds of value, `torchrun_words`
torchrun's options; `compact` keeps large ones small in memory. `decoding` reads what others wrote, `trimming` only the
fields that are needed of it, `encoding` writes what is sent, `printable` makes texts harmless to print, `signing` signs
assignments, `evidence` is what is kept of an attempt, `kept_logs` what is kept of workers' output (`stamped_lines` are
those of a log with their times, `attempt_marks` cut a log into its attempts), and `stacks` what ranks answered to who
asked for theirs; `records` is what the operator sends to the history of jobs, and `options` how
the settings of a process are given. `reasons` lists why workers and jobs end; `times` and `messages` write times and
durations.
"""
