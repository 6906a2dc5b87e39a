"""The table names the test files of each module of `agent`, here or in another folder of tests/.

| module | test files |
|---|---|
| `assignment` | `test_parsers` |
| `authority` | `test_forged_assignments` |
| `build` | `test_zipapp` |
| `ed25519` | `test_ed25519` |
| `errors` | `process/test_launcher` |
| `executor` | `test_one_worker`, `test_group` |
| `loop` | `test_network`, `test_server` |
| `main` | `test_zipapp`, `test_one_worker` |
| `settings` | `hang/test_observation` |
| `progress/bars` | `progress/test_log_rules` |
| `progress/counters` | `progress/test_sources`, `trainer/test_progress_counters` |
| `progress/log_rules` | `progress/test_log_rules`, `test_printed_progress` |
| `progress/presets` | `progress/test_log_rules` |
| `progress/printed` | `progress/test_sources`, `test_printed_progress` |
| `progress/sources` | `progress/test_sources`, `trainer/test_progress_huggingface` |
| `progress/step_times` | `progress/test_step_times`, `test_printed_progress` |
| `progress/trainer_environment` | `progress/test_trainer_reports` |
| `progress/trainer_reports` | `progress/test_trainer_reports` |
| `progress/trainer_server` | `test_trainer_server`, `trainer/test_progress_huggingface` |
| `library/stand_in` | `processes/agent/test_library` |
| `hang/diagnosis` | `hang/test_diagnosis` |
| `hang/evidence` | `hang/test_stall`, `test_hangs` |
| `hang/heartbeats` | `test_hostile_lines`, `test_parsers` |
| `hang/kernel_view` | `hang/test_stacks` |
| `hang/observation` | `hang/test_observation` |
| `hang/rank_states` | `hang/test_rank_states` |
| `hang/recorder` | `hang/test_recorder` |
| `hang/stacks` | `hang/test_stacks` |
| `hang/stall` | `hang/test_stall` |
| `hang/watch` | `hang/test_stall`, `test_hangs` |
| `network/actions` | `test_network`, `test_hostile_lines` |
| `network/connection` | `test_network` |
| `network/events` | `test_server` |
| `network/follower` | `network/test_follower` |
| `network/http` | `test_network`, `test_server` |
| `network/joining` | `test_network`, `test_group` |
| `network/kept_lines` | `network/test_leader` |
| `network/kept_reports` | `network/test_leader`, `network/test_leader_histories` |
| `network/leader` | `network/test_leader` |
| `network/lines` | `test_network`, `test_hostile_lines` |
| `network/metrics` | `network/test_metrics` |
| `network/network` | `test_network` |
| `network/resolve` | `network/test_resolve` |
| `network/server` | `test_network`, `test_server` |
| `network/unauthenticated` | `test_server` |
| `network/workers` | `network/test_leader` |
| `planner/actions` | `hang/test_stall`, `planner/test_attempts` |
| `planner/changes` | `planner/test_attempts`, `planner/test_histories` |
| `planner/classification` | `planner/test_classification` |
| `planner/continuing` | `planner/test_continuing`, `planner/test_histories` |
| `planner/events` | `planner/test_attempts`, `planner/test_histories` |
| `planner/leaving` | `planner/test_leaving` |
| `planner/plan` | `planner/test_attempts`, `planner/test_histories` |
| `planner/ranks` | `planner/test_ranks` |
| `planner/recovery` | `planner/test_recovery` |
| `planner/state` | `planner/test_attempts`, `planner/test_histories` |
| `planner/update` | `planner/test_attempts` |
| `process/attempt_output` | `test_one_worker`, `warm/test_same_end` |
| `process/cgroup` | `process/test_cgroup` |
| `process/children` | `test_one_worker`, `test_faults`, `test_reaped_ranks` |
| `process/code` | `process/test_code`, `planner/test_code`, `cluster/test_code` |
| `process/environment` | `process/test_environment` |
| `process/error_files` | `test_hostile_lines`, `planner/test_classification` |
| `process/group_file` | `process/test_group_file`, `processes/agent/test_continuing` |
| `process/launcher` | `process/test_launcher` |
| `process/mlflow_run` | `processes/agent/test_mlflow_run` |
| `process/output` | `test_one_worker` |
| `process/rank_processes` | `test_reaped_ranks`, `test_one_worker` |
| `process/rank_starts` | `processes/agent/test_continuing`, `warm/test_same_rank` |
| `process/run` | `process/test_run`, `test_one_worker`, `test_reaped_ranks` |
| `process/run_ids` | `process/test_run_ids`, `processes/agent/test_run_ids` |
| `process/saved_report` | `test_hostile_lines` |
| `process/saving` | `process/test_saving`, `test_group` |
| `process/setup_line` | `planner/test_attempts`, `test_one_worker` |
| `process/surroundings` | `test_mlflow_run`, `test_group`, `test_trainer_server` |
| `process/torchrun` | `process/test_torchrun`, `warm/test_same_rank` |
| `warm/command` | `warm/test_command` |
| `warm/copying` | `warm/test_stage`, `warm/test_faults_of_warm_processes` |
| `warm/learning` | `warm/test_learning`, `warm/test_faults_of_warm_processes` |
| `warm/stage/anew` | `warm/test_same_rank` |
| `warm/stage/blame` | `warm/test_blame`, `warm/test_faults_of_warm_processes` |
| `warm/stage/devices` | `warm/test_blame`, `gpu/test_warm_start` |
| `warm/stage/entry` | `warm/test_same_rank`, `warm/test_stage` |
| `warm/stage/forking` | `warm/test_same_rank`, `warm/test_faults_of_warm_processes` |
| `warm/stage/imports` | `warm/test_learning`, `warm/test_random_states`, `warm/test_faults_of_warm_processes` |
| `warm/stage/orders` | `warm/test_faults_of_warm_processes` |
| `warm/stage/sitecustomize` | `warm/test_same_rank` |
| `warm/stage/store` | `warm/test_faults_of_warm_processes`, `warm/test_restricted_pods` |
| `warm/stage/this_process` | `warm/test_faults_of_warm_processes` |
| `warm/warm_process` | `warm/test_same_rank`, `warm/test_faults_of_warm_processes`, `warm/test_mixed_groups` |
"""
