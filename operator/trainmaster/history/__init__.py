"""`trainmaster history` records what the operator sends of all jobs, and answers to who may see a job."""
