"""Declarative, config-driven experiment runner for agent evaluations."""
