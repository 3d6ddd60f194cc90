//! Objects from files: a manifest, or a directory of manifests, read once and then watched.
//!
//! ```text
//! tree (which files) ──▶ document (YAML or JSON) ──▶ read (objects) ──▶ file, source (what changed) ──▶ watch (when)
//! ```
//!
//! A file that is being written, is invalid or is briefly missing must never break a Service: what was last read from
//! it stays in force until the file can be read again or is really removed.

mod document;
mod file;
mod list;
mod read;
mod source;
mod tree;
mod watch;

pub use read::read_str;
pub use source::{Batch, LastLook, ManifestSource, OpenError};
pub use watch::ManifestWatch;

/// A file larger than this is refused: manifests of 100,000 Services are smaller.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// A document larger than this is not parsed into one tree of values if it is a list.
const LARGE_BYTES: usize = 64 << 10;
/// More objects than this are refused, in one file and in all files together.
const MAX_OBJECTS: usize = 1_000_000;
/// Values in one document: bounds the memory that 64 MiB of `[[[],[],…` would take.
const MAX_NODES: usize = 10_000_000;
/// Nesting of values; the deepest object we read has eight levels.
const MAX_DEPTH: usize = 100;
