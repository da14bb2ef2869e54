"""``mlxserver validate``: does reused, moved, stored, batched or quantised state give a cold run's logits?"""
