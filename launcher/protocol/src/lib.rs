//! What virt-handler and virt-launcher say to each other: gRPC, and descriptors on a second socket.
