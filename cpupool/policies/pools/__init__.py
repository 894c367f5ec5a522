"""The pools: devices of nokia/CPU-Pooler's kind, and the choice by a pool's rules."""
