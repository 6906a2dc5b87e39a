"""Each benchmark prints a table. None is a test. `python -m bench NAME` runs one, and `RESULTS.md` keeps the tables.

| question | benchmark |
|---|---|
| How long from a fault to all ranks joined again, through the whole operator? | `restart_by_fault` |
| What does a fault cost a run until its first new step, and how many steps are repeated? | `fault_cost` |
| What does a fault cost on a real Kubernetes, where survivors continue training? | `continued_on_kubernetes` |
| How long does a restart take with real agents and no cluster? | `agent_restart` |
| How long from an exception to its report? | `exception` |
| How long from a rank's launch to its first step, cold and warm? | `warm_ranks` |
| How soon do people see a hang, is the right rank named, and are there false alarms? | `hangs` |
| How long until an agent has started, by the form of its file? | `agent_start` |
| How long from apply to the first rank, and how many writes does the operator send? | `operator_start` |
| What does a job cost beside a bare StatefulSet of the same program? | `beside_stateful_set` |
| What do many jobs cost the operator in CPU, memory and resync? | `operator_scale` |
| What does sending records to a history cost the operator? | `history_cost` |
| What does a history of a thousand jobs cost, and how long does it take to answer? | `history` |
| What does an attack on a history cost the others? | `history_hostile` |
| What do a thousand jobs and a hundred viewers cost the dashboard? | `dashboard` |
| What do viewers who request large answers cost the dashboard and others? | `dashboard_hostile` |
| How soon does the dashboard's page show a killed rank? | `dashboard_failure` |
| What do large jobs, and pods that answer as no real agent does, cost all others? | `hostile_jobs`, `hostile_pods` |
| What do a tenant's large objects cost the operator? | `hostile_objects` |
| What do strangers who attack the operator's, history's and dashboard's ports cost all others? | `hostile_ports` |
| How long from a user's own code to its first step, by `submit --code` and by `push`? | `hands` |
| How long does a command take among a thousand jobs? | `hands_status` |
| How large is the dashboard's page, how soon does it show, and what do 1,000 jobs cost it? | `dashboard_page` |
| What does the signature of an assignment cost? | `signing` |
| What does reporting to an agent cost Hugging Face's Trainer? | `hands_huggingface` |
| Is the reported goodput what theory predicts? | `goodput` |
| What does the training loop cost over a loop written by hand? | `trainloop_step`, `trainloop_ranks` |
| What share of a GPU's peak does a decoder of a billion parameters use? | `trainloop_decoder` |
| How long does training pause for checkpoints, and for slow data? | `trainloop_checkpoint`, `trainloop_data` |
| How long does a resumed run take to its first step? | `trainloop_resume` |
| What does state in memory cost a step, a survivor and the next attempt? | `trainloop_state` |
| What do kills, restarts, snapshots and steps cost on a GPU? | `gpu` |
| How much memory does a rank need, and is that what theory says? | `trainloop_memory` (of a `trainloop_tower`) |
| What do ways of sending fewer gradients save? | `trainloop_compression` |

The embedded cluster's benchmark is `local/bench/api_server.py`. `clusters` contains the code that the operator's
benchmarks share: a cluster and an operator in separate processes. `programs` contains the programs of the jobs. `peers`
runs other tools for comparison.
"""
