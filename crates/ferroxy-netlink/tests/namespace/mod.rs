//! A network namespace for each test. Needs root (or `unshare -Urn` around it).

/// Runs the test in a thread that has moved to a fresh network namespace; it ends with the thread.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: a new network namespace changes nothing that Rust's memory model relies on.
        let moved = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
        moved.expect("this test needs CAP_SYS_ADMIN to make a network namespace");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}
