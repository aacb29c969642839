"""Reads and writes disks and object stores, and explains their errors."""
