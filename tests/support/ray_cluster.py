"""A Ray cluster of two machines that are one."""

from contextlib import contextmanager


@contextmanager
def two_machines(**each):
    """The cluster, and the node that is not its head; `each` of them has one CPU core unless it is said."""
    from ray.cluster_utils import Cluster

    each = {"num_cpus": 1, **each}
    found = Cluster(initialize_head=True, head_node_args={**each, "include_dashboard": False})
    try:
        second = found.add_node(**each)
        found.wait_for_nodes()
        yield found, second
    finally:
        found.shutdown()
