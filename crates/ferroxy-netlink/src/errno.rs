//! Error numbers of Linux for other platforms, because errors of this crate contain an errno on every platform.
//! On Linux [`crate::error::Errno`] is rustix' type. This type has the same names, but only those that are used.

use std::fmt;

/// An error number of the Linux kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u16);

impl Errno {
    /// For numbers that the kernel uses, which are at most 4095.
    pub const fn from_raw_os_error(number: i32) -> Errno {
        Errno(number as u16)
    }

    pub const fn raw_os_error(self) -> i32 {
        self.0 as i32
    }
}

macro_rules! errnos {
    ($($name:ident = $number:literal, $words:literal;)*) => {
        impl Errno {
            $(pub const $name: Errno = Errno($number);)*

            /// The text of the C library; `None` for a number without a name here.
            const fn words(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($words),)*
                    _ => None,
                }
            }
        }

        #[cfg(all(test, target_os = "linux"))]
        const ALL: &[(Errno, rustix::io::Errno)] = &[$((Errno::$name, rustix::io::Errno::$name)),*];
    };
}

errnos! {
    PERM = 1, "Operation not permitted";
    NOENT = 2, "No such file or directory";
    SRCH = 3, "No such process";
    INTR = 4, "Interrupted system call";
    IO = 5, "Input/output error";
    AGAIN = 11, "Resource temporarily unavailable";
    NOMEM = 12, "Cannot allocate memory";
    ACCESS = 13, "Permission denied";
    BUSY = 16, "Device or resource busy";
    EXIST = 17, "File exists";
    NODEV = 19, "No such device";
    INVAL = 22, "Invalid argument";
    NOSPC = 28, "No space left on device";
    PROTO = 71, "Protocol error";
    BADMSG = 74, "Bad message";
    MSGSIZE = 90, "Message too long";
    NOPROTOOPT = 92, "Protocol not available";
    PROTONOSUPPORT = 93, "Protocol not supported";
    OPNOTSUPP = 95, "Operation not supported";
    AFNOSUPPORT = 97, "Address family not supported by protocol";
    ADDRINUSE = 98, "Address already in use";
    ADDRNOTAVAIL = 99, "Cannot assign requested address";
    NOBUFS = 105, "No buffer space available";
    TIMEDOUT = 110, "Connection timed out";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.words() {
            Some(words) => write!(f, "{words} (os error {})", self.0),
            None => write!(f, "Unknown error {} (os error {})", self.0, self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_words_are_those_of_linux() {
        for (ours, theirs) in ALL {
            assert_eq!(ours.raw_os_error(), theirs.raw_os_error());
            assert_eq!(ours.to_string(), theirs.to_string());
        }
        let unnamed = Errno::from_raw_os_error(4000);
        assert_eq!(unnamed.to_string(), rustix::io::Errno::from_raw_os_error(4000).to_string());
    }
}
