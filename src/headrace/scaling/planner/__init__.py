"""The planner of pools: loads, a simulation with the policy of controllers, costs, and a recommendation."""
