"""Koordinator's node agent: QoS classes, shared sets, the CPUs that no scheduler has chosen.

`policy` decides. `late_binding` chooses the CPUs of an owner, `exclusivity` says which cores and
NUMA nodes they avoid, `lending` whose CPUs best-effort pods use, and `best_effort` how many under a
load. `classes` has the rules of classes, `pod_annotations` and `node_rules` read the annotations of
pods and nodes, and `topology_annotations` writes those for koord-scheduler, with the `shared_sets`.
In other rooms the modules of the feature have its name.
"""
