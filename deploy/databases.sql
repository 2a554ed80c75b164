-- The image of PostgreSQL runs this once, in the new database rag_eval.
CREATE DATABASE dagster;
CREATE DATABASE mlflow;
