"""All that runs beside a student's code, and nothing else. It knows no answer.

The first process of a sandbox (`__main__`, `worker`), the wire to the trusted side, the drivers and
what they bring back. It imports `gpt`, the solutions of earlier labs and itself.
"""

__all__ = [
    *("around", "drivers", "failure", "lent", "notebook", "peer", "plain", "records", "rights"),
    *("shown", "source", "stand_ins", "tensors", "wire", "worker"),
]
