//! The description of types (BTF) that the kernel requires for a map of socket data: a number as key, a fixed size as value.

use std::os::fd::OwnedFd;

use super::call::{Attributes, Command};
use super::error::Error;

/// Loaded into the kernel.
#[derive(Debug)]
pub struct SocketValueType {
    pub(super) fd: OwnedFd,
}

/// Type ids, in the order of `blob`.
pub(super) const KEY: u32 = 1;
pub(super) const VALUE: u32 = 2;

impl SocketValueType {
    pub fn load(value_size: u32) -> Result<SocketValueType, Error> {
        let blob = blob(value_size);
        // btf, btf_log_buf, btf_size, btf_log_size, btf_log_level
        let load = Attributes::new().input(&blob).long(0).word(blob.len() as u32).word(0).word(0).word(0);
        let fd = { load }.open(Command::BtfLoad);
        Ok(SocketValueType { fd: fd.map_err(|errno| Error::new("describe", "the data of a socket", errno))? })
    }
}

fn blob(value_size: u32) -> Vec<u8> {
    const MAGIC: u16 = 0xeb9f;
    const HEADER: u32 = 24;
    const INT: u32 = 1 << 24;
    const STRUCT: u32 = 4 << 24;
    let names = b"\0int\0value\0";
    // An int of 32 bits with a sign; a structure of this size, whose members do not matter.
    let types = [1, INT, 4, 1 << 24 | 32, 5, STRUCT, value_size];
    let types: Vec<u8> = types.into_iter().flat_map(u32::to_ne_bytes).collect();
    let mut blob = MAGIC.to_ne_bytes().to_vec();
    // Version 1, no flags.
    blob.extend_from_slice(&[1, 0]);
    for number in [HEADER, 0, types.len() as u32, types.len() as u32, names.len() as u32] {
        blob.extend_from_slice(&number.to_ne_bytes());
    }
    blob.extend(types);
    blob.extend_from_slice(names);
    blob
}
