"""What stages hand to each other: pydantic models for files, documented column schemas for frames, errors that name their place."""
