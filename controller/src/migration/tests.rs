//! Plans for migrations.
