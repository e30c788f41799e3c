"""Services from which other autoscalers read the decisions about pools of workers."""
