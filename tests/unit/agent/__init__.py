"""The table names the test files of each module of `agent`, here or in another folder of tests/.

| module | test files |
|---|---|
| `authority` | `test_parsers`, `test_forged_assignments` |
| `build` | `test_zipapp` |
| `connection` | `test_network`, `test_hostile_lines` |
| `ed25519` | `test_ed25519` |
| `errors` | `process/test_launcher` |
| `executor` | `test_one_worker`, `test_group` |
| `hang/evidence` | `hang/test_evidence`, `hang/test_diagnosis`, `test_hangs` |
| `hang/observation` | `hang/test_observation` |
| `hang/hung_rank` | `hang/test_hung_rank`, `hang/test_notices` |
| `hang/diagnosis` | `hang/test_diagnosis`, `hang/test_notices`, `hang/test_simulated_days` |
| `hang/vitals` | `hang/test_vitals`, `test_vitals` |
| `hang/watch` | `hang/test_diagnosis`, `test_hangs`, `test_stalls` |
| `http` | `test_network`, `test_server` |
| `library/lightning_progress` | `test_lightning_progress` |
| `library/rank_hook` | `processes/agent/test_rank_hook` |
| `library/stand_in` | `processes/agent/test_library` |
| `loop` | `test_network`, `test_server` |
| `main` | `test_zipapp`, `test_one_worker` |
| `network/connections` | `network/test_leader`, `network/test_follower`, `test_hostile_lines` |
| `network/follower` | `network/test_follower` |
| `network/joining` | `network/test_joining`, `test_network`, `test_group` |
| `network/leader` | `network/test_leader` |
| `network/metrics` | `network/test_metrics` |
| `network/network` | `test_network` |
| `network/server` | `test_network`, `test_server` |
| `network/workers` | `network/test_leader`, `network/test_leader_histories` |
| `planner/actions` | `hang/test_diagnosis`, `planner/test_attempts` |
| `planner/changes` | `planner/test_attempts`, `planner/test_histories` |
| `planner/classification` | `planner/test_classification` |
| `planner/continuing` | `planner/test_continuing`, `planner/test_histories` |
| `planner/events` | `planner/test_attempts`, `planner/test_histories`, `planner/test_leaving` |
| `planner/plan` | `planner/test_attempts`, `planner/test_histories`, `planner/test_leaving` |
| `planner/ranks` | `planner/test_ranks` |
| `planner/state` | `planner/test_attempts`, `planner/test_histories`, `planner/test_recovery` |
| `process/children` | `test_one_worker`, `test_faults`, `test_reaped_ranks` |
| `process/code` | `process/test_code`, `planner/test_code`, `cluster/test_code` |
| `process/preflight` | `process/test_preflight` |
| `process/gpus` | `process/test_system` |
| `process/kernel` | `process/test_kernel`, `process/test_stacks`, `process/test_system` |
| `process/launcher` | `process/test_launcher`, `process/test_torchrun`, `process/test_run_ids` |
| `process/output` | `process/test_output`, `test_one_worker` |
| `process/rank_processes` | `test_reaped_ranks`, `processes/agent/test_continuing`, `warm/test_same_rank` |
| `process/run` | `process/test_run`, `test_one_worker`, `test_reaped_ranks` |
| `process/setup_line` | `planner/test_attempts`, `test_one_worker` |
| `process/stacks` | `process/test_stacks` |
| `process/state_folder` | `process/test_state_folder`, `test_hostile_lines`, `processes/agent/test_continuing` |
| `process/system` | `process/test_system`, `test_group` |
| `progress/common_lines` | `progress/test_common_lines`, `test_printed_progress` |
| `progress/log_rules` | `progress/test_log_rules`, `test_printed_progress` |
| `progress/printed` | `progress/test_sources`, `test_printed_progress` |
| `progress/recorder` | `progress/test_recorder`, `progress/test_sources`, `trainer/test_progress_counters` |
| `progress/sources` | `progress/test_sources`, `test_hostile_lines`, `test_parsers` |
| `progress/usual` | `progress/test_usual`, `hang/test_simulated_days` |
| `progress/trainer` | `progress/test_trainer`, `test_trainer_server`, `trainer/test_progress_huggingface` |
| `settings` | `hang/test_observation` |
| `warm/command` | `warm/test_command` |
| `warm/learning` | `warm/test_learning`, `warm/test_faults_of_warm_processes` |
| `warm/stage/devices` | `warm/test_blame`, `gpu/test_warm_start` |
| `warm/stage/forkable` | `warm/test_blame`, `warm/test_learning`, `warm/test_random_states` |
| `warm/stage/forking` | `warm/test_same_rank`, `warm/test_faults_of_warm_processes` |
| `warm/stage/orders` | `warm/test_same_rank`, `warm/test_stage`, `warm/test_faults_of_warm_processes` |
| `warm/stage/sitecustomize` | `warm/test_same_rank` |
| `warm/stage/store` | `warm/test_faults_of_warm_processes`, `warm/test_restricted_pods` |
| `warm/stage/this_process` | `warm/test_faults_of_warm_processes` |
| `warm/warm_process` | `warm/test_stage`, `warm/test_same_rank`, `warm/test_mixed_groups` |
"""
