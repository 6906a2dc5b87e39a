"""Defines the custom resource with its models, the CRD generated from the models, and the validation of a job.

Start with `v1alpha1`, the models of spec and status. `values` defines the types of their fields, and `crd` generates
the CustomResourceDefinition from the models. `rules` defines the rules between fields, each in Python and in CEL.

Validation: `parsing` reads a manifest and returns the job or all of its problems. It uses `problems` (problems and
their wording), `field_messages` (unknown and wrong fields), `limits` (sizes), `kubernetes_syntax` (names, labels,
quantities, ports), `pod_template` and `pod_schema` (podTemplate), and `training_schema` (the bundled loop's
configuration). `merge` merges podTemplate as Kubernetes does. `reasons` lists the
reasons why workers and jobs end.

Formats: `json_codec` and `trimming` decode JSON of any size, `printable` escapes text from pods and users, and `times`
formats times. `evidence` and `kept_logs` define the ConfigMaps that outlive pods. `records` defines what is sent to the
history of jobs, `signing` signs assignments, and `options` declares the settings of a process.
"""
