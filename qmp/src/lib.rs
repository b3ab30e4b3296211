//! A QMP and guest agent client on a unix stream. Knows no Kubernetes.
