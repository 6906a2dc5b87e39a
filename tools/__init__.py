"""These modules make files of this repository from their sources. No distribution contains them.

| module | what it makes | how it is called |
|---|---|---|
| `generate` | all generated files, and the check that they are up to date | `make generate`, `make generated` |
| `chart` | `manifests/*.yaml` and the chart's copy of the CRD | by `generate` |
| `dashboards` | `charts/trainmaster/dashboards/*.json`: Grafana's dashboards | by `generate` |
| `api_reference` | `docs/reference.md`: every field of the custom resource | by `generate` |
| `operator_options` | the table of options in `docs/operating.md` | by `generate` |
| `commands_page` | `docs/commands.md`: every command with its options | by `generate` |
| `reasons_page` | `docs/reasons.md`: every reason for which a worker or a job can end | by `generate` |
| `training_reference` | `docs/training-reference.md`: every field of a training configuration | by `generate` |
| `pod_types` | `operator/trainmaster_operator/api/pod_schema/types.json`: the fields of pods | by `generate` |
| `training_schema` | `operator/trainmaster_operator/api/training_schema.json`: the loop's settings | by `generate` |
| `lock` | `images/*.lock` and `images/*/*.lock`: every package of the images with its hashes | `make lock` |
| `vendor` | the dashboard's copy of uPlot, from npm, and the npm packages that tests need | by hand |
| `screenshots` | `docs/pictures`: the dashboard's page of a real job that survived three faults | by hand |
| `name_digest` | the digest of a released image, in the chart's values | `.github/workflows/release.yaml` |

The CRD itself is made by `trainmaster_operator.api.crd`, because `trainmaster crd` prints it too. The tests that
compare golden files also write them (`tests/unit/rendering/goldens.py`).
"""
