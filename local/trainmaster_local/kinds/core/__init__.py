"""The core types except Pod, and related types.

- `namespaces`: Namespace and ResourceQuota.
- `nodes`: Node, Lease and PriorityClass.
- `services`: Service.
- `configuration`: ConfigMap, Secret and ServiceAccount.
- `claims`: PersistentVolumeClaim, PersistentVolume and StorageClass.
- `events`: Event.
"""
