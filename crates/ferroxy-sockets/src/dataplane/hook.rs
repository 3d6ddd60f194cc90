//! Where a program is attached, and the link that keeps it there. Links are pinned beside the generations: they stay when a
//! generation is replaced.

use std::path::Path;

use ferroxy_bpf::kernel::{Attach, Cgroup, Errno, Link, Pinned, Program};
use ferroxy_core::Family;

use super::generation::{GenerationError, remove_file};
use crate::entry::Clients;

/// The calls, and the sockets, for which a program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    Connect(Family, Clients),
    PeerName(Family, Clients),
}

impl Hook {
    pub const ALL: [Hook; 8] = [
        Hook::Connect(Family::V4, Clients::HOST),
        Hook::Connect(Family::V6, Clients::HOST),
        Hook::Connect(Family::V4, Clients::PODS),
        Hook::Connect(Family::V6, Clients::PODS),
        Hook::PeerName(Family::V4, Clients::HOST),
        Hook::PeerName(Family::V6, Clients::HOST),
        Hook::PeerName(Family::V4, Clients::PODS),
        Hook::PeerName(Family::V6, Clients::PODS),
    ];

    /// The name of the program and, with `link-`, of the link. (No dots: bpffs reserves them.)
    pub fn name(self) -> &'static str {
        match self {
            Hook::Connect(Family::V4, Clients::HOST) => "connect4-host",
            Hook::Connect(Family::V6, Clients::HOST) => "connect6-host",
            Hook::Connect(Family::V4, _) => "connect4-pods",
            Hook::Connect(Family::V6, _) => "connect6-pods",
            Hook::PeerName(Family::V4, Clients::HOST) => "peer4-host",
            Hook::PeerName(Family::V6, Clients::HOST) => "peer6-host",
            Hook::PeerName(Family::V4, _) => "peer4-pods",
            Hook::PeerName(Family::V6, _) => "peer6-pods",
        }
    }

    pub fn clients(self) -> Clients {
        let (Hook::Connect(_, clients) | Hook::PeerName(_, clients)) = self;
        clients
    }

    pub fn attach(self) -> Attach {
        match self {
            Hook::Connect(Family::V4, _) => Attach::Connect4,
            Hook::Connect(Family::V6, _) => Attach::Connect6,
            Hook::PeerName(Family::V4, _) => Attach::GetPeerName4,
            Hook::PeerName(Family::V6, _) => Attach::GetPeerName6,
        }
    }

    fn link_name(self) -> String {
        format!("link-{}", self.name())
    }

    /// Attaches the program to the cgroup. Returns whether anything had to be changed.
    pub fn ensure(self, pins: &Path, program: &Program, cgroup: &Cgroup) -> Result<bool, GenerationError> {
        let path = pins.join(self.link_name());
        if let Ok(link) = Link::open_pinned(&path) {
            let info = link.info()?;
            if info.cgroup == cgroup.id() && info.attach == self.attach() as u32 {
                if info.program == program.info()?.id {
                    return Ok(false);
                }
                match link.update(program) {
                    Ok(()) => return Ok(true),
                    // The cgroup is gone; one of the same name has taken its place.
                    Err(error) if error.errno == Errno::NOLINK => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let link = Link::create(&self.link_name(), program, cgroup, self.attach())?;
        // Removing the pin also removes the old link, if there is one.
        remove_file(&path)?;
        link.pin(&path)?;
        Ok(true)
    }

    /// Whether this program runs for sockets of the cgroup. A program of another agent, or from another bpffs that was mounted at
    /// the same place, reads other maps.
    pub fn is_in_force(self, pins: &Path, program: u32, cgroup: &Cgroup) -> Result<bool, GenerationError> {
        let Ok(link) = Link::open_pinned(&pins.join(self.link_name())) else { return Ok(false) };
        let info = link.info()?;
        let is_ours = info.cgroup == cgroup.id() && info.program == program;
        Ok(is_ours && cgroup.effective(self.attach())?.contains(&program))
    }

    /// Detaches the program. Returns whether one was attached.
    pub fn remove(self, pins: &Path) -> Result<bool, GenerationError> {
        let path = pins.join(self.link_name());
        let is_there = path.exists();
        remove_file(&path)?;
        Ok(is_there)
    }
}
