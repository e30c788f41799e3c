"""The servers that let other autoscalers follow the decisions about pools."""
