//! The generated types of `proto/device_plugin.proto`.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

tonic::include_proto!("v1beta1");
