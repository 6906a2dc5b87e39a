"""The core types but Pod, and those that belong to them.

- `namespaces`: Namespace and ResourceQuota.
- `nodes`: Node, Lease and PriorityClass.
- `services`: Service.
- `configuration`: ConfigMap, Secret and ServiceAccount.
- `claims`: PersistentVolumeClaim, PersistentVolume and StorageClass.
- `events`: Event.
"""
