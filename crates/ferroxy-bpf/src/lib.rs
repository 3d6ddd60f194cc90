//! BPF without a toolchain: programs are Rust values, loaded by our own bpf(2) calls. Contains no Kubernetes logic.
//!
//! ```text
//! Assembler ──▶ Code ──encode──▶ kernel (maps, programs, links, pins: Linux only)
//!                 └────machine──▶ the same instructions, executed here over maps as values
//! ```

#![deny(unsafe_code)]

mod assembler;
mod code;
mod instruction;
#[cfg(target_os = "linux")]
pub mod kernel;
pub mod machine;

pub use assembler::{Assembler, Label, Unresolved};
pub use code::{Code, Undecodable};
pub use instruction::{Arithmetic, Comparison, Instruction, KernelFunction, Operand, Register, Size};
