//! Where lines go: all to standard error, or (`splitStream`) errors there and the rest to standard output, through a
//! buffer if one is asked for.

use std::io::{self, BufWriter, Stdout, Write};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::config::{LogFormat, Logging};

/// Standard output, while the stream is split.
static INFO: OnceLock<Mutex<BufWriter<Stdout>>> = OnceLock::new();

/// Says what is kept back. To be called before the process ends.
pub fn flush() {
    if let Some(mut info) = INFO.get().map(lock) {
        // Whoever reads it is gone: there is nobody to tell.
        let _ = info.flush();
    }
}

pub(super) fn open(logging: &Logging) -> Streams {
    let stream = match logging.format {
        LogFormat::Text => &logging.text,
        LogFormat::Json => &logging.json,
    };
    if !stream.split_stream {
        return Streams { split: false };
    }
    let size = stream.buffer_bytes();
    INFO.get_or_init(|| Mutex::new(BufWriter::with_capacity(size, io::stdout())));
    if size > 0 && !logging.flush_frequency.is_zero() {
        let every = logging.flush_frequency;
        let flusher = move || {
            loop {
                thread::sleep(every);
                flush();
            }
        };
        // Without the thread, lines come when the buffer is full: late, but they come.
        let _ = thread::Builder::new().name("log-flush".to_owned()).spawn(flusher);
    }
    Streams { split: true }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Streams {
    split: bool,
}

impl<'a> MakeWriter<'a> for Streams {
    type Writer = Stream;

    fn make_writer(&'a self) -> Stream {
        Stream::Errors
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Stream {
        match self.split && *metadata.level() != Level::ERROR {
            true => Stream::Rest,
            false => Stream::Errors,
        }
    }
}

/// Every write is a whole line.
#[derive(Debug)]
pub(super) enum Stream {
    Errors,
    Rest,
}

impl Write for Stream {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match (self, INFO.get()) {
            (Stream::Rest, Some(info)) => {
                let mut info = lock(info);
                // A line is not torn apart by the end of the buffer.
                if info.capacity() - info.buffer().len() < line.len() {
                    info.flush()?;
                }
                info.write(line)
            }
            _ => {
                // An error may be the last thing that is said: what led to it comes first.
                flush();
                io::stderr().write(line)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock(info: &Mutex<BufWriter<Stdout>>) -> MutexGuard<'_, BufWriter<Stdout>> {
    info.lock().unwrap_or_else(PoisonError::into_inner)
}
