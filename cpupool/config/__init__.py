"""The files of admins: pool files, settings, the kubelet's configuration, OpenShift's profiles.

Each module decodes one of them into values, and finds the contradictions in it.
"""
