//! Programs for the socket addresses of a cgroup: loads them, and reads the kernel's description of them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::call::{Attributes, Command};
use super::error::Error;
use super::map::Map;
use super::pin::{Pinned, info, word};
use crate::code::Code;

#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
}

/// Where a program is attached, with the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Attach {
    Connect4 = 10,
    Connect6 = 11,
    GetPeerName4 = 29,
    GetPeerName6 = 30,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramInfo {
    pub id: u32,
    /// A hash of the instructions. Descriptors of maps are not part of it.
    pub tag: [u8; 8],
}

const CGROUP_SOCKET_ADDRESS: u32 = 18;
const XDP: u32 = 6;
/// The kernel offers some of its functions to programs under the GPL only. None of ours needs one.
const LICENSE: &[u8] = b"Apache-2.0\0";
const LOG: usize = 64 * 1024;

impl Program {
    /// Loads a program that can be attached to a cgroup.
    pub fn load(name: &str, attach: Attach, code: &Code, maps: &[&Map]) -> Result<Program, Error> {
        load(name, CGROUP_SOCKET_ADDRESS, attach as u32, code, maps)
    }

    /// Loads a program for packets (XDP), which is never attached: [`Program::test`] runs it.
    pub fn load_for_test(name: &str, code: &Code, maps: &[&Map]) -> Result<Program, Error> {
        load(name, XDP, 0, code, maps)
    }

    /// Runs a program for packets over these bytes; returns its result and the bytes afterwards.
    pub fn test(&self, packet: &[u8]) -> Result<(u32, Vec<u8>), Error> {
        let mut after = vec![0; packet.len()];
        // prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat, duration
        let mut run = Attributes::new().descriptor(self.as_fd()).word(0).word(packet.len() as u32);
        run = run.word(after.len() as u32).input(packet).output(&mut after).word(1).word(0);
        let ran = run.run(Command::ProgramTestRun);
        let result = run.word_at(4);
        ran.map_err(|errno| Error::new("test program", &self.name, errno))?;
        Ok((result, after))
    }

    pub fn info(&self) -> Result<ProgramInfo, Error> {
        let info = info(self.as_fd(), &self.name, 16)?;
        let mut tag = [0; 8];
        tag.copy_from_slice(&info[8..16]);
        Ok(ProgramInfo { id: word(&info, 4), tag })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

fn load(name: &str, kind: u32, attach: u32, code: &Code, maps: &[&Map]) -> Result<Program, Error> {
    let descriptor = |map: u32| maps.get(map as usize).map_or(-1, |map| map.as_fd().as_raw_fd());
    let instructions = code.encode(descriptor);
    let attempt = |log: &mut [u8]| {
        let level = u32::from(!log.is_empty());
        let length = log.len() as u32;
        // prog_type, insn_cnt, insns, license, log_level, log_size, log_buf, kern_version, prog_flags, prog_name,
        // prog_ifindex, expected_attach_type
        let load = Attributes::new().word(kind).word(code.slots() as u32).input(&instructions).input(LICENSE);
        let load = load.word(level).word(length);
        let load = if log.is_empty() { load.long(0) } else { load.output(log) };
        load.word(0).word(0).raw(&kernel_name(name)).word(0).word(attach).open(Command::ProgramLoad)
    };
    match attempt(&mut []) {
        Ok(fd) => Ok(Program { fd, name: name.to_owned() }),
        Err(errno) => {
            let mut error = Error::new("load program", name, errno);
            // Load once more, to get the verifier's log. After EPERM the verifier did not even run.
            if errno != Errno::PERM {
                let mut log = vec![0; LOG];
                let _ = attempt(&mut log);
                error.explanation = last_lines(&log);
            }
            Err(error)
        }
    }
}

/// The last lines of the verifier's log, as one line.
fn last_lines(log: &[u8]) -> Option<String> {
    let text: Vec<u8> = log.iter().copied().take_while(|byte| *byte != 0).collect();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // The very last one is a statistic.
    let lines: Vec<&str> = lines.into_iter().filter(|line| !line.starts_with("processed ")).collect();
    let last = lines.iter().rev().take(2).rev().copied().collect::<Vec<_>>().join("; ");
    (!last.is_empty()).then_some(last)
}

/// At most fifteen characters: letters, digits, `_` and `.`.
pub(super) fn kernel_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    let allowed =
        name.bytes().map(|byte| if byte.is_ascii_alphanumeric() || byte == b'.' { byte } else { b'_' });
    bytes.iter_mut().take(15).zip(allowed).for_each(|(to, from)| *to = from);
    bytes
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Pinned for Program {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn adopt(fd: OwnedFd, name: String) -> Result<Program, Error> {
        Ok(Program { fd, name })
    }
}
