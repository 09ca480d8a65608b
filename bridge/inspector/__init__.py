"""What only the node itself can tell: which processes hold its GPU devices, whoever started them and in what container.

A process that has left its job or pod escapes both schedulers, but not the kernel's table of open files. The inspector
answers the broker's questions (``NodeInspection``) with what it finds there. It may read that table and nothing else.
"""
