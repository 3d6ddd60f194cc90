//! Bodies of answers. A client that does not read a large one must not hold its memory for long.
//!
//! A page of metrics can have megabytes, and a connection that does not read keeps its page. So only the last few large pages
//! are kept: a new one evicts the oldest, and a client that has not read that by then loses its connection.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// Pages of up to this size are not counted, because the number of connections is limited.
const SMALL: usize = 256 * 1024;
/// The most large pages at a time. A page of 20,000 series has about 4 MB.
const MOST: usize = 8;
/// How much of a large page is handed to the connection at a time.
const PART: usize = 64 * 1024;

/// The body of an answer.
#[derive(Debug)]
pub struct Contents {
    page: Page,
    sent: usize,
    length: usize,
}

#[derive(Debug)]
enum Page {
    Own(Bytes),
    Kept(Arc<Kept>),
}

/// `None`: the page was evicted.
type Kept = Mutex<Option<Bytes>>;

/// The large pages that clients are reading.
#[derive(Debug, Default)]
pub struct Shelf(Mutex<VecDeque<Arc<Kept>>>);

impl From<Bytes> for Contents {
    fn from(bytes: Bytes) -> Contents {
        Contents { length: bytes.len(), page: Page::Own(bytes), sent: 0 }
    }
}

impl Shelf {
    /// The body of this page, and how many other pages were evicted for it.
    pub fn contents(&self, page: String) -> (Contents, u64) {
        let bytes = Bytes::from(page);
        if bytes.len() <= SMALL {
            return (bytes.into(), 0);
        }
        let length = bytes.len();
        let kept = Arc::new(Mutex::new(Some(bytes)));
        let mut pages = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|page| Arc::strong_count(page) > 1);
        let mut given_up = 0;
        while pages.len() >= MOST
            && let Some(oldest) = pages.pop_front()
        {
            oldest.lock().unwrap_or_else(PoisonError::into_inner).take();
            given_up += 1;
        }
        pages.push_back(Arc::clone(&kept));
        (Contents { page: Page::Kept(kept), sent: 0, length }, given_up)
    }
}

impl Drop for Contents {
    /// Frees the memory now and not when the next page comes.
    fn drop(&mut self) {
        if let Page::Kept(page) = &self.page {
            page.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
    }
}

impl Contents {
    /// `None` if the page was evicted. A part of a large page is a copy, so that it does not keep the page in memory.
    fn next(&mut self) -> Option<Bytes> {
        match &self.page {
            Page::Own(bytes) => {
                let rest = bytes.slice(self.sent..);
                self.sent = self.length;
                Some(rest)
            }
            Page::Kept(page) => {
                let page = page.lock().unwrap_or_else(PoisonError::into_inner);
                let end = self.length.min(self.sent + PART);
                let part = Bytes::copy_from_slice(page.as_ref()?.get(self.sent..end)?);
                self.sent = end;
                Some(part)
            }
        }
    }
}

impl Body for Contents {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        let part = self.next().map(Frame::data);
        Poll::Ready(Some(part.ok_or_else(|| io::ErrorKind::ConnectionAborted.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.sent >= self.length
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.length - self.sent) as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    fn read(contents: Contents) -> io::Result<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(contents.collect()).map(|all| all.to_bytes().len())
    }

    fn bytes_held(shelf: &Shelf) -> usize {
        let pages = shelf.0.lock().unwrap();
        pages.iter().map(|page| page.lock().unwrap().as_ref().map_or(0, Bytes::len)).sum()
    }

    #[test]
    fn pages_of_any_size_arrive() {
        let shelf = Shelf::default();
        for length in [0, 1, SMALL, SMALL + 1, 10 * SMALL] {
            let (contents, given_up) = shelf.contents("x".repeat(length));
            assert_eq!((contents.size_hint().exact(), given_up), (Some(length as u64), 0));
            assert_eq!(read(contents).unwrap(), length);
        }
        assert_eq!(bytes_held(&shelf), 0, "a page that was read is not kept");
    }

    #[test]
    fn those_who_do_not_read_hold_a_few_pages_at_most() {
        let (shelf, length) = (Shelf::default(), 2 * SMALL);
        let mut unread: Vec<Contents> = Vec::new();
        for number in 0..100 {
            let (contents, given_up) = shelf.contents("x".repeat(length));
            assert_eq!(given_up, u64::from(number >= MOST));
            unread.push(contents);
            assert!(bytes_held(&shelf) <= MOST * length);
        }
        assert_eq!(read(unread.remove(0)).unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(read(unread.pop().unwrap()).unwrap(), length, "the last one is whole");
        // Clients that close their connections make room.
        unread.clear();
        assert_eq!((bytes_held(&shelf), shelf.contents("x".repeat(length)).1), (0, 0));
    }
}
