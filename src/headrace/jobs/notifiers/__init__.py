"""Notifiers: webhooks, Amazon SNS, e-mail."""
