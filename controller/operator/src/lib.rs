//! What an installation consists of: custom resource definitions, roles, workloads, webhooks.
