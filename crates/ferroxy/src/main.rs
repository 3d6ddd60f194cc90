//! The binary. Everything is in the library, where tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferroxy::panic::abort_on_panic();
    ferroxy::command::main(std::env::args_os(), ferroxy::modes::MODES)
}
