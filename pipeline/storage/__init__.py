"""Object stores: their clients, and what their errors mean."""
