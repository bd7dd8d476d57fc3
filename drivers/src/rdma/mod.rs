//! RDMA transports: each implements the framework's verbs over what it has, and none falls back to another.

pub mod roce;
