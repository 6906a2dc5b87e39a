"""The table names the test files of each module of `cli`, here or in another folder of tests/.

| module | test files |
|---|---|
| `completion` | `test_completion` |
| `console` | `test_hostile_text` |
| `demo` | `e2e/test_demo` |
| `documents` | `test_documents`, `test_manifests` |
| `dtj` | `test_dtj`, `test_dtj_status`, `test_dtj_wait`, `test_dtj_suspend` |
| `evidence` | `test_dtj_evidence`, `test_hostile_text` |
| `following` | `test_following` |
| `keys` | `test_keys` |
| `local_images` | `processes/local/test_local_cluster`, `e2e/test_demo` |
| `local` | `processes/local/test_local_cluster`, `e2e/test_readme` |
| `main` | `test_manifests`, `test_start` |
| `manifests` | `test_manifests` |
| `operator` | `test_settings_options` |
| `other_kinds` | `test_manifests` |
| `settings_options` | `test_settings_options` |
| `show` | `test_dtj_status` |
| `terminal` | `test_hostile_text` |
| `watching` | `test_dtj_watching`, `test_hostile_text` |
| `wrong_values` | `test_dtj`, `test_dtj_wait`, `test_settings_options` |
| `yaml_messages` | `test_documents` |
| `yaml_scalars` | `test_documents` |
| `yaml_values` | `test_documents` |
"""
