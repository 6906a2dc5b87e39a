"""The table names the test files of each module of `api`, here or in another folder of tests/.

| module | test files |
|---|---|
| `accelerator_names` | `test_pod_template`, `unit/rendering/test_golden` |
| `attempt_marks` | `test_attempt_marks` |
| `compact` | `unit/rendering/test_hostile` |
| `crd` | `test_crd` |
| `decoding` | `unit/controller/cache/test_unreadable` |
| `encoding` | `test_encoding`, `cluster/test_refused_objects` |
| `evidence` | `test_hostile_messages`, `unit/cli/test_dtj_evidence` |
| `field_messages` | `test_sentences`, `test_field_messages`, `test_pod_template` |
| `kept_logs` | `test_kept_logs`, `unit/controller/keeping/test_logs` |
| `labels` | `test_metadata`, `test_pod_schema` |
| `limits` | `test_limits` |
| `merge` | `test_merge` |
| `metadata` | `test_metadata` |
| `misplaced` | `test_misplaced_fields` |
| `nearest` | `test_field_messages` |
| `options` | `unit/controller/test_main` |
| `paths` | `test_sentences`, `test_pod_template` |
| `parsing` | `test_manifests`, `test_sentences`, `test_limits` |
| `pod_schema/by_type` | `test_pod_schema`, `test_drawn_pods`, `mistakes/unit/test_offline` |
| `pod_schema/fields` | `test_pod_schema`, `test_drawn_pods` |
| `pod_schema/openapi` | `test_pod_schema`, `cluster/test_custom_resource` |
| `pod_schema/relations` | `test_pod_schema` |
| `pod_schema/resources` | `test_pod_schema` |
| `pod_schema/types` | `test_drawn_pods` |
| `pod_schema/values` | `test_pod_schema` |
| `pod_template` | `test_pod_template` |
| `printable` | `unit/cli/test_hostile_text`, `unit/serving/test_log_formats` |
| `problems` | `test_sentences`, `unit/cli/test_manifests` |
| `quantities` | `test_sentences` |
| `records` | `test_records` |
| `rule` | `test_crd` |
| `rules` | `test_sentences`, `test_crd` |
| `signing` | `unit/controller/keys/test_signing_keys` |
| `stacks` | `unit/controller/keeping/test_stacks` |
| `stamped_lines` | `unit/cli/test_logs` |
| `torchrun_words` | `unit/converting/test_commands`, `unit/client/code/test_scripts` |
| `training_schema` | `test_training`, `trainer/test_training_schema` |
| `trimming` | `test_trimming`, `unit/dashboard/test_shapes` |
| `values` | `test_sentences`, `test_agreement` |
| `v1alpha1/base_models` | `test_agreement`, `test_crd` |
| `v1alpha1/code` | `test_agreement`, `mistakes/unit/test_offline` |
| `v1alpha1/names` | `test_crd`, `cluster/test_custom_resource` |
| `v1alpha1/pods` | `test_agreement`, `test_pod_template` |
| `v1alpha1/policies` | `test_agreement`, `test_sentences` |
| `v1alpha1/spec` | `test_agreement`, `test_sentences` |
| `v1alpha1/status` | `test_hostile_messages`, `unit/reconciling/status/test_plausible_statuses` |
| `v1alpha1/workers` | `test_agreement`, `test_sentences` |
| `words` | `test_words` |
| `wrong_types` | `test_sentences` |
| `messages` | `unit/reconciling/policies/test_startup` |
| `reasons` | `test_reasons` |
| `times` | `test_times` |
"""
