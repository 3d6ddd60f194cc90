//! bpf(2) and the socket options that rustix does not cover. All `unsafe` code of this crate is here.

#![allow(unsafe_code, reason = "the system call takes pointers; this file is the only one that may")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// The commands, with the kernel's numbers.
#[derive(Debug, Clone, Copy)]
#[repr(i64)]
pub(super) enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    ProgramLoad = 5,
    ObjectPin = 6,
    ObjectGet = 7,
    ProgramTestRun = 10,
    ObjectInfo = 15,
    ProgramQuery = 16,
    BtfLoad = 18,
    MapLookupBatch = 24,
    MapUpdateBatch = 26,
    LinkCreate = 28,
    LinkUpdate = 29,
}

/// The argument of a command: `union bpf_attr`, written field by field. It borrows every buffer whose address it contains.
#[derive(Debug)]
pub(super) struct Attributes<'a> {
    bytes: Vec<u8>,
    buffers: std::marker::PhantomData<&'a mut [u8]>,
}

impl<'a> Attributes<'a> {
    pub fn new() -> Attributes<'a> {
        Attributes { bytes: Vec::with_capacity(128), buffers: std::marker::PhantomData }
    }

    pub fn word(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn long(mut self, value: u64) -> Self {
        self.align();
        self.bytes.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn raw(mut self, value: &[u8]) -> Self {
        self.bytes.extend_from_slice(value);
        self
    }

    pub fn descriptor(self, fd: BorrowedFd<'a>) -> Self {
        self.word(fd.as_raw_fd() as u32)
    }

    /// The address of memory that the kernel reads.
    pub fn input(self, buffer: &'a [u8]) -> Self {
        self.long(buffer.as_ptr() as u64)
    }

    /// The address of memory that the kernel writes.
    pub fn output(self, buffer: &'a mut [u8]) -> Self {
        self.long(buffer.as_mut_ptr() as u64)
    }

    /// Addresses are aligned in the kernel's structure.
    pub fn align(&mut self) {
        let rest = self.bytes.len().next_multiple_of(8) - self.bytes.len();
        self.bytes.extend(std::iter::repeat_n(0, rest));
    }

    /// Reads a number from the structure, to which the kernel writes some results.
    pub fn word_at(&self, offset: usize) -> u32 {
        let bytes = self.bytes.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_ne_bytes)
    }

    /// Runs the command. Every length in the structure is that of the buffer beside it: the functions of this module ensure it.
    pub fn run(&mut self, command: Command) -> Result<i32, Errno> {
        self.align();
        // SAFETY: the structure has the length that is passed with it. It borrows the buffers whose addresses it contains,
        // and the lengths in it are those of the buffers.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, command as i64, self.bytes.as_mut_ptr(), self.bytes.len())
        };
        match i32::try_from(result) {
            Ok(result) if result >= 0 => Ok(result),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }

    /// Runs a command whose result is a new descriptor.
    pub fn open(&mut self, command: Command) -> Result<OwnedFd, Errno> {
        let fd = self.run(command)?;
        // SAFETY: the kernel has just made this descriptor for us, and nothing else owns it. BPF descriptors are close-on-exec.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Reads an option of eight bytes.
pub(super) fn long_option(fd: BorrowedFd<'_>, option: i32) -> Result<u64, Errno> {
    let mut value = [0; 8];
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, and `length` is the size of `value`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            value.as_mut_ptr().cast::<c_void>(),
            &mut length,
        )
    };
    match result {
        0 => Ok(u64::from_ne_bytes(value)),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
