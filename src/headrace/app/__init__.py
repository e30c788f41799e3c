"""Composition root: builds and joins the objects of all packages, without business rules."""
