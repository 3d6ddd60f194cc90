//! A link: attaches a program to a cgroup, as long as a descriptor or a pin of the link exists.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::call::{Attributes, Command};
use super::cgroup::Cgroup;
use super::error::Error;
use super::pin::{Pinned, info, word};
use super::program::{Attach, Program};

#[derive(Debug)]
pub struct Link {
    fd: OwnedFd,
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkInfo {
    pub id: u32,
    pub program: u32,
    /// 0 when the cgroup is gone.
    pub cgroup: u64,
    pub attach: u32,
}

impl Link {
    /// Several programs can be attached at one place, and all of them run. The kernel refuses the link if another program was
    /// attached exclusively, without a link.
    pub fn create(name: &str, program: &Program, cgroup: &Cgroup, attach: Attach) -> Result<Link, Error> {
        // prog_fd, target_fd, attach_type, flags
        let create = Attributes::new().descriptor(program.as_fd()).descriptor(cgroup.as_fd());
        let fd = create.word(attach as u32).word(0).open(Command::LinkCreate);
        let object = || format!("{name} to cgroup {}", cgroup.name());
        let fd = fd.map_err(|errno| Error::new("attach program", object(), errno))?;
        Ok(Link { fd, name: name.to_owned() })
    }

    /// Replaces the program atomically. Fails with ENOLINK when the cgroup is gone.
    pub fn update(&self, program: &Program) -> Result<(), Error> {
        // link_fd, new_prog_fd, flags
        let mut update =
            Attributes::new().descriptor(self.as_fd()).descriptor(program.as_fd()).word(0).word(0);
        let updated = update.run(Command::LinkUpdate);
        updated.map(drop).map_err(|errno| Error::new("replace the program of link", &self.name, errno))
    }

    pub fn info(&self) -> Result<LinkInfo, Error> {
        // type, id, prog_id, then of a cgroup: id (eight bytes), attach_type
        let info = info(self.as_fd(), &self.name, 32)?;
        let mut cgroup = [0; 8];
        cgroup.copy_from_slice(&info[16..24]);
        Ok(LinkInfo {
            id: word(&info, 4),
            program: word(&info, 8),
            cgroup: u64::from_ne_bytes(cgroup),
            attach: word(&info, 24),
        })
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Pinned for Link {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn adopt(fd: OwnedFd, name: String) -> Result<Link, Error> {
        Ok(Link { fd, name })
    }
}
