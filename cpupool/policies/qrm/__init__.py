"""The policy `qrm`, under which plugins choose; their questions, and Katalyst's words in a pod."""
