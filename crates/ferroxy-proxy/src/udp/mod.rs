//! UDP: clients' datagrams in batches, and a session with a connected socket for each client.

pub mod listen;
mod session;
mod sessions;
