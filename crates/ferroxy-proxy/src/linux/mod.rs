//! Linux: everything that has no portable form. `any/` has the same interface for other platforms.

mod datagrams;
mod options;
mod pass;
mod pipe;
pub mod runtime;
mod store;

pub use datagrams::{Batch, send};
pub use options::{
    Spare, descriptor_limit, is_exhausted, original_destination, prepare_datagrams, prepare_listener,
    set_mark, set_user_timeout,
};
pub use pass::{MOST as MOST_PASSED, receive_sockets, send_sockets};
pub use pipe::Pipe;
pub use store::Store;

/// Whether several sockets can listen on one address.
pub const SHARES_ADDRESSES: bool = true;
