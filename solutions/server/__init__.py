"""Lab 13, given: the server around the lab's pieces.

Read messages, engine_thread, protocol, service, guard, app, connections and here, in turn; then
router_app, replicas and on_ray, for several machines.
"""
