"""Receptive fields: which pixels of the inputs each element of a value reads.

    axis_map          one axis: index of the result -> first and last index read, periodic
    routes            of each operation: where an axis of an operand goes, and by which map
    receptive_fields  maps put one after the other, from the inputs of a graph to its outputs

What is true of one axis is true of all: every operation that is local reads a box.
"""
