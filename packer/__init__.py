"""Numbers to plans: workload models, packing policies, context-parallel plans, measures."""
