//! Remembers in a file which addresses are ours: a restart adopts them, and `cleanup` removes them and no others.
//!
//! Each line names an address: `+` is written before the address is added, `-` after it was removed. After a crash the file may
//! therefore name an address that the host does not have, never the reverse. A line without a line break is ignored. When most
//! lines are history, the file is rewritten under another name and renamed.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The most addresses of Services on a host. Limits of frontends, which are fair to namespaces, apply long before.
pub const MOST: usize = 1_048_576;

/// The size of the longest file that we write: twice as many lines as addresses, each as long as possible.
const MOST_BYTES: u64 = 2 * (MOST as u64 + SLACK as u64) * 48;

/// So many lines of history do not cause a rewrite.
const SLACK: usize = 256;

const HEADER: &str = "ferroxy addresses of Services on ";

#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    interface: String,
    ours: BTreeSet<IpAddr>,
    lines: usize,
    most: usize,
    /// Open for appending. `None`: the next change rewrites the file.
    file: Option<File>,
}

impl Journal {
    /// Reads the file of earlier runs, and changes nothing. A file that is not in our format is an error.
    pub fn open(path: &Path, interface: &str) -> io::Result<Journal> {
        let mut journal = Journal {
            path: path.to_owned(),
            interface: interface.to_owned(),
            ours: BTreeSet::new(),
            lines: 0,
            most: MOST,
            file: None,
        };
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(journal),
            other => other?,
        };
        let mut text = String::new();
        file.take(MOST_BYTES + 1).read_to_string(&mut text)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(invalid(path, "is too long"));
        }
        journal.read(&text)?;
        Ok(journal)
    }

    fn read(&mut self, text: &str) -> io::Result<()> {
        // The text after the last line break is empty, or an incomplete line that a crash left.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut lines = whole.lines();
        let Some(header) = lines.next() else { return Ok(()) };
        let interface = header.strip_prefix(HEADER).ok_or_else(|| invalid(&self.path, "is not ours"))?;
        self.interface = interface.to_owned();
        for line in lines {
            let change = line.split_at_checked(1).and_then(|(sign, ip)| Some((sign, ip.parse().ok()?)));
            match change {
                Some(("+", ip)) if self.ours.len() < self.most => drop(self.ours.insert(ip)),
                Some(("-", ip)) => drop(self.ours.remove(&ip)),
                _ => return Err(invalid(&self.path, "has a line that is not ours")),
            }
            self.lines += 1;
        }
        Ok(())
    }

    pub fn ours(&self) -> &BTreeSet<IpAddr> {
        &self.ours
    }

    /// The interface that these addresses were put on.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// From now on addresses are put on this interface. None of ours may be left on another one.
    pub fn set_interface(&mut self, name: &str) {
        if self.interface != name {
            name.clone_into(&mut self.interface);
            self.file = None;
        }
    }

    /// To be called before addresses are added. After an error, none of the new ones is remembered. Returns the addresses beyond
    /// the limit, which must not be added.
    pub fn remember(&mut self, addresses: &[IpAddr]) -> io::Result<Vec<IpAddr>> {
        let mut new: Vec<IpAddr> = addresses.iter().filter(|ip| !self.ours.contains(ip)).copied().collect();
        let beyond = new.split_off(new.len().min(self.most.saturating_sub(self.ours.len())));
        self.ours.extend(&new);
        if let Err(error) = self.append('+', &new) {
            for ip in &new {
                self.ours.remove(ip);
            }
            return Err(error);
        }
        Ok(beyond)
    }

    /// To be called after addresses were removed.
    pub fn forget(&mut self, addresses: &[IpAddr]) -> io::Result<()> {
        let gone: Vec<IpAddr> = addresses.iter().filter(|ip| self.ours.contains(ip)).copied().collect();
        for ip in &gone {
            self.ours.remove(ip);
        }
        self.append('-', &gone)
    }

    /// Forgets all addresses, and removes the file.
    pub fn delete(&mut self) -> io::Result<()> {
        self.file = None;
        self.ours.clear();
        self.lines = 0;
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// `self.ours` is already as it must be.
    fn append(&mut self, sign: char, addresses: &[IpAddr]) -> io::Result<()> {
        if addresses.is_empty() {
            return Ok(());
        }
        let is_history = self.lines + addresses.len() > 2 * self.ours.len() + SLACK;
        let Some(file) = self.file.as_mut().filter(|_| !is_history) else { return self.rewrite() };
        let mut text = String::new();
        for ip in addresses {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{sign}{ip}");
        }
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        match written {
            Ok(()) => self.lines += addresses.len(),
            // The file may end with half a line: the next attempt rewrites the file.
            Err(_) => self.file = None,
        }
        written
    }

    fn rewrite(&mut self) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let mut text = format!("{HEADER}{}\n", self.interface);
        for ip in &self.ours {
            let _ = writeln!(text, "+{ip}");
        }
        let beside = self.path.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        drop(file);
        self.file = None;
        fs::rename(&beside, &self.path)?;
        self.file = Some(OpenOptions::new().append(true).open(&self.path)?);
        self.lines = self.ours.len();
        Ok(())
    }
}

fn invalid(path: &Path, what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{} {what}: remove it by hand", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: u32) -> IpAddr {
        IpAddr::from((0x0a60_0000 + number).to_be_bytes())
    }

    fn journal(path: &Path) -> Journal {
        Journal::open(path, "Ethernet").unwrap()
    }

    #[test]
    fn what_was_remembered_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").join("addresses");
        let mut first = journal(&path);
        assert!(!path.exists() && first.ours().is_empty());
        first.remember(&[ip(1), ip(2)]).unwrap();
        first.remember(&[ip(2), ip(3)]).unwrap();
        first.forget(&[ip(1), ip(9)]).unwrap();
        drop(first);
        let mut second = Journal::open(&path, "Loopback").unwrap();
        assert_eq!(*second.ours(), [ip(2), ip(3)].into());
        assert_eq!(second.interface(), "Ethernet", "where they are");
        second.forget(&[ip(2), ip(3)]).unwrap();
        second.set_interface("Loopback");
        second.remember(&[ip(4)]).unwrap();
        let third = journal(&path);
        assert_eq!((third.interface(), third.ours().len()), ("Loopback", 1));
        second.delete().unwrap();
        assert!(!path.exists());
        second.delete().unwrap();
    }

    /// After a crash during the last write, everything before it is known, and nothing that was never written.
    #[test]
    fn a_cut_anywhere_loses_the_last_line_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses");
        let mut whole = journal(&path);
        whole.remember(&[ip(1)]).unwrap();
        let before = fs::read(&path).unwrap();
        whole.remember(&[ip(2)]).unwrap();
        let after = fs::read(&path).unwrap();
        // Windows does not replace a file that is open.
        drop(whole);
        for cut in before.len()..after.len() {
            fs::write(&path, &after[..cut]).unwrap();
            assert_eq!(*journal(&path).ours(), [ip(1)].into(), "cut at {cut}");
        }
        // And the next write repairs it.
        fs::write(&path, &after[..after.len() - 2]).unwrap();
        journal(&path).remember(&[ip(3)]).unwrap();
        assert_eq!(*journal(&path).ours(), [ip(1), ip(3)].into());
    }

    #[test]
    fn the_file_does_not_grow_with_history() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses");
        let mut journal = journal(&path);
        for round in 0..300 {
            journal.remember(&[ip(round)]).unwrap();
            journal.forget(&[ip(round)]).unwrap();
        }
        assert!(fs::metadata(&path).unwrap().len() < (2 * SLACK * 48) as u64);
        assert!(journal.ours().is_empty());
    }

    #[test]
    fn there_is_a_limit_and_foreign_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("addresses");
        let mut small = journal(&path);
        small.most = 3;
        assert!(small.remember(&[ip(1), ip(2)]).unwrap().is_empty());
        assert_eq!(small.remember(&[ip(2), ip(3), ip(4), ip(5)]).unwrap(), [ip(4), ip(5)]);
        assert_eq!(*journal(&path).ours(), [ip(1), ip(2), ip(3)].into(), "as many as fit");
        small.forget(&[ip(1)]).unwrap();
        assert_eq!(small.remember(&[ip(4), ip(5)]).unwrap(), [ip(5)]);
        for text in ["hello\n", "ferroxy addresses of Services on x\n10.0.0.1\n"] {
            fs::write(&path, text).unwrap();
            assert!(Journal::open(&path, "x").is_err(), "{text:?}");
        }
        fs::write(&path, "").unwrap();
        assert!(journal(&path).ours().is_empty(), "an empty file is what a crash may leave");
    }
}
