"""Ways of telling somebody what became of a job: webhooks, Amazon SNS, e-mail."""
