"""Plugins for the QoS Resource Manager: CPUs, memory nodes and network interfaces of containers.

A plugin gives containers the resources that an agent or a kubelet asks it for. Each is a pure
decision (`cpu.py`, ...) behind one server (`server.py`).
"""
