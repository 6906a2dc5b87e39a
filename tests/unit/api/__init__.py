"""The table names the test files of each module of `api`, here or in another folder of tests/.

| module | test files |
|---|---|
| `crd` | `test_crd`, `test_pod_schema`, `cluster/test_custom_resource` |
| `evidence` | `test_hostile_messages`, `unit/cli/test_dtj_evidence`, `unit/controller/keeping/test_stacks` |
| `field_messages` | `test_sentences`, `test_field_messages`, `test_pod_template` |
| `json_codec` | `unit/controller/cache/test_unreadable`, `test_json_codec`, `cluster/test_refused_objects` |
| `kept_logs` | `test_kept_logs`, `unit/controller/keeping/test_logs` |
| `kubernetes_syntax` | `test_metadata`, `test_pod_schema`, `test_sentences` |
| `limits` | `test_limits` |
| `merge` | `test_merge` |
| `options` | `unit/controller/test_main` |
| `parsing` | `test_metadata`, `test_manifests`, `test_sentences`, `test_limits`, `test_command_words` |
| `pod_schema/fields` | `test_pod_schema`, `test_drawn_pods` |
| `pod_schema/relations` | `test_pod_schema`, `test_drawn_pods`, `mistakes/unit/test_offline` |
| `pod_schema/resources` | `test_pod_template`, `unit/rendering/test_golden`, `test_pod_schema` |
| `pod_template` | `test_sentences`, `test_pod_template` |
| `printable` | `unit/cli/test_hostile_text`, `unit/serving/test_logs` |
| `problems` | `test_field_messages`, `test_sentences`, `unit/cli/test_manifests` |
| `reasons` | `test_reasons` |
| `records` | `test_records` |
| `rules` | `test_crd`, `test_sentences` |
| `signing` | `unit/controller/test_keys` |
| `times` | `unit/reconciling/policies/test_startup`, `test_times` |
| `training_schema` | `test_training`, `trainer/test_training_schema` |
| `trimming` | `test_trimming`, `unit/dashboard/test_shapes` |
| `v1alpha1/names` | `test_crd`, `cluster/test_custom_resource` |
| `v1alpha1/spec` | `test_agreement`, `test_sentences`, `test_pod_template`, `mistakes/unit/test_offline` |
| `v1alpha1/status` | `test_hostile_messages`, `unit/reconciling/status/test_plausible_statuses` |
| `values` | `unit/rendering/test_hostile`, `test_sentences`, `test_agreement` |
"""
