//! What is kept of migrations.
