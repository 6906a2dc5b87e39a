"""What needs a GPU: `make test-gpu`. Without one every test here is skipped, and says so.

Two ranks share one GPU where NCCL takes them for two hosts (`NCCL_HOSTID`); a killed peer then leaves the other one's
kernel stuck, as it does between machines.
"""
