//! One netlink socket against the real kernel. Needs no privilege and no namespace.

#![cfg(target_os = "linux")]

use std::time::Duration;

use ferroxy_netlink::error::Errno;
use ferroxy_netlink::socket::{Protocol, Request, Socket};

#[test]
fn the_kernel_refuses_with_words() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    // RTM_GETLINK for a device that does not exist: needs no privilege.
    let request = Request { operation: "find link", object: "nosuch", kind: 18, flags: 0 };
    let error = socket
        .query(request, |message| {
            message.put_raw(&[0; 16]);
            message.put_str(3, "nosuch");
        })
        .unwrap_err();
    assert_eq!(error.errno, Errno::NODEV);
    assert_eq!(error.to_string(), "cannot find link nosuch: No such device");
}

#[test]
fn a_listing_has_an_end() {
    let mut socket = Socket::open(Protocol::Route).unwrap();
    let request = Request { operation: "list links", object: "", kind: 18, flags: 0 };
    let answer = socket.dump(request, |message| message.put_raw(&[0; 16])).unwrap();
    assert!(answer.messages().count() >= 1, "every namespace has a loopback device");
    assert!(!socket.wait(Some(Duration::ZERO)).unwrap(), "the receive queue is empty after a dump");
}
