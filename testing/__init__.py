"""The public test kit for programs built on turnhold."""
