"""Lab 13, given: the server around the lab's pieces.

Read settings, messages, engine_thread, engine_process, protocol, service, web, app, connections and
here, in turn; then routing, router_app and replicas for several servers, on_ray for a cluster, and
guard, access, metrics and pace for what a server must withstand and show.
"""
