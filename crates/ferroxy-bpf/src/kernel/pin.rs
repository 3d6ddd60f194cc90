//! Pins: names in bpffs. A pinned object outlives the process.

use std::ffi::CString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::statfs;
use rustix::io::Errno;

use super::call::{Attributes, Command};
use super::error::Error;

const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

/// Whether a directory is on a bpffs.
pub fn is_bpf_filesystem(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.f_type as u64 & 0xffff_ffff == BPF_FS_MAGIC)
}

/// An object that can be pinned, and opened by its path.
pub trait Pinned: Sized {
    #[doc(hidden)]
    fn descriptor(&self) -> BorrowedFd<'_>;

    #[doc(hidden)]
    fn adopt(fd: OwnedFd, name: String) -> Result<Self, Error>;

    fn pin(&self, path: &Path) -> Result<(), Error> {
        let name = c_path(path, "pin")?;
        // pathname, bpf_fd, file_flags
        let mut pin = Attributes::new().input(name.as_bytes_with_nul()).descriptor(self.descriptor()).word(0);
        pin.run(Command::ObjectPin)
            .map(drop)
            .map_err(|errno| Error::new("pin", path.display().to_string(), errno))
    }

    fn open_pinned(path: &Path) -> Result<Self, Error> {
        let name = c_path(path, "open pinned")?;
        let mut get = Attributes::new().input(name.as_bytes_with_nul()).word(0).word(0);
        let fd = get.open(Command::ObjectGet);
        let fd = fd.map_err(|errno| Error::new("open pinned", path.display().to_string(), errno))?;
        Self::adopt(fd, path.file_name().unwrap_or_default().to_string_lossy().into_owned())
    }
}

fn c_path(path: &Path, operation: &'static str) -> Result<CString, Error> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::new(operation, path.display().to_string(), Errno::INVAL))
}

/// Reads the kernel's description of an object.
pub(super) fn info(fd: BorrowedFd<'_>, what: &str, length: usize) -> Result<Vec<u8>, Error> {
    let mut info = vec![0; length];
    // bpf_fd, info_len, info
    let mut ask = Attributes::new().descriptor(fd).word(length as u32).output(&mut info);
    let asked = ask.run(Command::ObjectInfo);
    asked.map_err(|errno| Error::new("read the properties of", what, errno))?;
    Ok(info)
}

/// A number in the answer of [`info`].
pub(super) fn word(info: &[u8], offset: usize) -> u32 {
    let bytes = info.get(offset..offset + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_ne_bytes)
}
