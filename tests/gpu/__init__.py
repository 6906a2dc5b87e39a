"""These tests need a GPU: `make test-gpu`. Without one, each of them is skipped with a message.

Two ranks share one GPU if NCCL takes them for two hosts (`NCCL_HOSTID`). A killed peer then leaves the other one's
kernel stuck, as between machines.
"""
