"""Formats of media: images, audio and video, decoded from a stream of bytes."""
