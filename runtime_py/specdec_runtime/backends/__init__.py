"""Executors of submits. Each knows the plan and the effects, none knows a drafter or another backend."""
