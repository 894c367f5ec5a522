"""Plugins for the QoS Resource Manager: CPUs, memory nodes and network interfaces of containers.

Each is a pure decision (`cpu.py`, ...) behind one server (`server.py`).
"""
