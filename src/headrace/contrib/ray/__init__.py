"""The adapter for Ray Data's ``map_batches``. `headrace.ray` has its public name.

No module here imports ray. Ray makes the instances, calls them with batches of its own size, and
receives each batch with the predictions beside its columns, with as many rows.
"""
