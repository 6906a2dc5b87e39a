"""The table names the test files of each module of `cli`, here or in another folder of tests/.

| module | test files |
|---|---|
| `completion` | `test_completion` |
| `console` | `test_hostile_text` |
| `demo` | `e2e/test_demo` |
| `documents` | `test_documents`, `test_manifests` |
| `dtj` | `test_dtj` |
| `evidence` | `test_dtj`, `test_hostile_text` |
| `keys` | `test_keys` |
| `local` | `processes/local/test_local_cluster`, `e2e/test_readme` |
| `local_images` | `processes/local/test_local_cluster`, `e2e/test_demo` |
| `main` | `test_manifests`, `test_start` |
| `manifests` | `test_manifests` |
| `other_kinds` | `test_manifests` |
| `operator` | `test_settings_options` |
| `settings_options` | `test_settings_options` |
| `show` | `test_dtj` |
| `terminal` | `test_hostile_text` |
| `yaml_messages` | `test_documents` |
| `yaml_scalars` | `test_documents` |
| `yaml_values` | `test_documents` |
"""
