//! The binary. Everything is in the library, where tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ferroxy::command::main(std::env::args_os())
}
