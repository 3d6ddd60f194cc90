//! Any platform: stand-ins from the standard library alone. An operation that it lacks returns "unsupported" or an
//! empty figure.

pub mod addresses;
pub mod claim;
pub mod files;
pub mod host;
pub mod interface;
pub mod sockets;
pub mod streams;

use std::io;

/// `what` is not supported on this platform.
fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("{what} is not supported on this platform"))
}

/// There is nothing to set: only Linux has these settings.
pub mod conntrack {
    use crate::conntrack::{Report, Settings};

    pub fn apply(_: &Settings) -> Report {
        Report::default()
    }
}

/// No log of events.
pub mod event_log {
    use std::io;

    use crate::event_log::Severity;

    #[derive(Debug)]
    pub enum Source {}

    impl Source {
        pub fn open(_: &str) -> io::Result<Source> {
            Err(super::unsupported("the Event Log"))
        }

        pub fn write(&self, _: Severity, _: &str) -> io::Result<()> {
            match *self {}
        }
    }
}

/// The allocator takes no hints and has no figures.
pub mod memory {
    use std::io;

    use crate::memory::AllocatorFigures;

    pub fn keep_memory_small() {}

    pub fn give_memory_back() {}

    pub fn allocator_figures() -> Option<AllocatorFigures> {
        None
    }

    pub fn set_oom_score(_: i32) -> io::Result<()> {
        Err(super::unsupported("an OOM score"))
    }
}

/// The process keeps the privileges it was started with.
pub mod privileges {
    use std::io;

    use crate::{Privilege, Privileges};

    pub fn keep(_: &Privileges, _: &[Privilege]) -> io::Result<()> {
        Err(super::unsupported("dropping privileges"))
    }

    /// Threads have no privileges of their own here.
    pub fn give_up_in_this_thread() -> io::Result<()> {
        Ok(())
    }
}

/// No figures.
pub mod process {
    use std::io;

    use crate::process::{Figures, Thread};

    pub fn figures() -> Figures {
        Figures::default()
    }

    pub fn threads() -> Vec<Thread> {
        Vec::new()
    }

    /// There is no limit that we know of.
    pub fn raise_open_files_limit() -> io::Result<()> {
        Ok(())
    }
}

/// No profiles.
#[cfg(feature = "profiling")]
pub mod profile {
    use std::io;

    use crate::profile::Mapping;

    #[derive(Debug)]
    pub enum Sampling {}

    impl Sampling {
        pub fn start() -> io::Result<Sampling> {
            Err(super::unsupported("a CPU profile"))
        }

        pub fn finish(self) -> io::Result<Vec<Vec<u64>>> {
            match self {}
        }
    }

    pub fn mappings() -> Vec<Mapping> {
        Vec::new()
    }
}

/// There is no service manager that waits for messages.
pub mod notify {
    use std::fmt;
    use std::io;
    use std::time::Duration;

    #[derive(Debug)]
    pub enum Link {}

    impl Link {
        pub fn from_environment() -> io::Result<Option<(Link, Option<Duration>)>> {
            Ok(None)
        }

        pub fn ready(&self, _: &dyn fmt::Display) {
            match *self {}
        }

        pub fn status(&self, _: &dyn fmt::Display) {
            match *self {}
        }

        pub fn reloading(&self) {
            match *self {}
        }

        pub fn stopping(&self, _: &dyn fmt::Display) {
            match *self {}
        }

        pub fn alive(&self) {
            match *self {}
        }
    }
}

/// No service manager that a process registers with.
pub mod service {
    use std::io;

    use crate::service::Work;

    pub fn run(_: &'static str, _: Work) -> io::Result<()> {
        Err(super::unsupported("running as a service"))
    }
}

/// Signals end the process, as they do by default.
pub mod signals {
    use std::io;

    use crate::StopReason;

    pub fn watch(_: Box<dyn FnMut(io::Result<StopReason>) + Send>) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_so() {
        let error = memory::set_oom_score(0).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(error.to_string(), "an OOM score is not supported on this platform");
        assert!(privileges::keep(&crate::Privileges::NONE, &[]).is_err());
        assert!(notify::Link::from_environment().unwrap().is_none());
        assert!(conntrack::apply(&crate::conntrack::Settings::default()).failed.is_empty());
    }
}
