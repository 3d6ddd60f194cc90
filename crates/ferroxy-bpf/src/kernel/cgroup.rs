//! A cgroup (version 2), to which programs are attached.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, open};

use super::call::{Attributes, Command};
use super::error::Error;
use super::program::Attach;

#[derive(Debug)]
pub struct Cgroup {
    fd: OwnedFd,
    name: String,
    id: u64,
}

/// At most this many programs of one cgroup are listed.
const MOST_PROGRAMS: usize = 64;
const EFFECTIVE: u32 = 1;

impl Cgroup {
    pub fn open(path: &Path) -> Result<Cgroup, Error> {
        let name = path.display().to_string();
        let failed = |errno| Error::new("open cgroup", &name, errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(failed)?;
        // The inode of a cgroup is its id.
        let id = fstat(&fd).map_err(failed)?.st_ino;
        Ok(Cgroup { fd, name, id })
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The ids of the programs that run for sockets of this cgroup, including those attached to cgroups above it.
    pub fn effective(&self, attach: Attach) -> Result<Vec<u32>, Error> {
        let mut ids = [0; MOST_PROGRAMS * 4];
        // target_fd, attach_type, query_flags, attach_flags, prog_ids, prog_cnt
        let mut query =
            Attributes::new().descriptor(self.as_fd()).word(attach as u32).word(EFFECTIVE).word(0);
        query = query.output(&mut ids).word(MOST_PROGRAMS as u32);
        let answered = query.run(Command::ProgramQuery);
        let count = query.word_at(24) as usize;
        answered.map_err(|errno| Error::new("list the programs of cgroup", &self.name, errno))?;
        let ids = ids.chunks_exact(4).take(count.min(MOST_PROGRAMS));
        Ok(ids.filter_map(|id| id.try_into().ok()).map(u32::from_ne_bytes).collect())
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
