//! The kernel's nf_tables: tables, chains, rules, sets and their elements; written in atomic batches, read back as the
//! same types, and watched for changes. Callers decide what the rules are for.
//!
//! Everything made here is listed by the `nft` tool as if `nft` had made it.

mod batch;
mod commit;
#[cfg(target_os = "linux")]
mod connection;
mod decode;
mod encode;
mod expr;
#[cfg(target_os = "linux")]
mod monitor;
mod notice;
mod types;
mod userdata;
mod wire;

pub use batch::Batch;
pub use commit::{CommitError, Failure, Receipt};
#[cfg(target_os = "linux")]
pub use connection::Connection;
pub use decode::CompatRule;
#[doc(hidden)]
pub use decode::read_everything;
pub use expr::{
    Base, CmpOp, CtDirection, CtKey, DynsetOp, Expr, Expression, Expressions, Extension, FibAddress, MetaKey,
    meta_key, register,
};
#[doc(hidden)]
pub use expr::{decode_expressions, encode_expressions};
#[cfg(target_os = "linux")]
pub use monitor::{Ignorer, Monitor, Subscription};
pub use notice::Notice;
pub use types::{
    Chain, ChainType, Counter, Data, DataRef, Datatype, Element, ElementRef, Family, Hook, HookPoint,
    NewRule, ObservedRule, Place, Rule, Set, SetData, Table, Verdict, VerdictRef,
};
pub use userdata::COMMENT_MAX;
