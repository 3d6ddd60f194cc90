//! A whole program, and the kernel's encoding of it: eight bytes for each slot.

use std::error::Error;
use std::fmt;

use crate::instruction::{Arithmetic, Comparison, Instruction, KernelFunction, Operand, Register, Size};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Code(pub Vec<Instruction>);

/// The bytes at this slot are not an instruction that we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undecodable {
    pub slot: usize,
}

// Classes of instructions, and the bits that are combined with them.
const LOAD_IMMEDIATE: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE_CONSTANT: u8 = 0x62;
const STORE: u8 = 0x63;
const ATOMIC: u8 = 0xc3;
const JUMP: u8 = 0x05;
const ARITHMETIC: u8 = 0x07;
const FROM_REGISTER: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// As the source register of a 64-bit constant, it means that the constant is the descriptor of a map.
const MAP: u8 = 1;

const SIZES: [(Size, u8); 4] =
    [(Size::Word, 0x00), (Size::Half, 0x08), (Size::Byte, 0x10), (Size::Double, 0x18)];
const OPERATIONS: [(Arithmetic, u8); 9] = [
    (Arithmetic::Add, 0x00),
    (Arithmetic::Subtract, 0x10),
    (Arithmetic::Multiply, 0x20),
    (Arithmetic::Or, 0x40),
    (Arithmetic::And, 0x50),
    (Arithmetic::ShiftLeft, 0x60),
    (Arithmetic::ShiftRight, 0x70),
    (Arithmetic::Modulo, 0x90),
    (Arithmetic::Move, 0xb0),
];
const COMPARISONS: [(Comparison, u8); 4] = [
    (Comparison::Equal, 0x10),
    (Comparison::Greater, 0x20),
    (Comparison::AnyBit, 0x40),
    (Comparison::NotEqual, 0x50),
];

/// One slot: `struct bpf_insn`.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    value: i32,
}

impl Code {
    /// The length of the program in slots, as the kernel counts it.
    pub fn slots(&self) -> usize {
        self.0.iter().map(Instruction::slots).sum()
    }

    /// Encodes the program for the kernel, in the byte order of this machine. `map` returns the descriptor of a map.
    pub fn encode(&self, map: impl Fn(u32) -> i32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.slots() * 8);
        for instruction in &self.0 {
            for slot in slots(instruction, &map).into_iter().flatten() {
                bytes.extend_from_slice(&slot.bytes());
            }
        }
        bytes
    }

    /// Decodes a program. `map` returns the position of the map with a descriptor.
    pub fn decode(bytes: &[u8], map: impl Fn(i32) -> u32) -> Result<Code, Undecodable> {
        let mut code = Vec::new();
        let (mut chunks, mut at) = (bytes.chunks_exact(8), 0);
        while let Some(chunk) = chunks.next() {
            let undecodable = Undecodable { slot: at };
            let slot = Slot::of(chunk).ok_or(undecodable)?;
            let instruction = if slot.code == LOAD_IMMEDIATE {
                let second = chunks.next().and_then(Slot::of).ok_or(undecodable)?;
                let to = register(slot.to).ok_or(undecodable)?;
                match slot.from {
                    MAP => Instruction::LoadMap(to, map(slot.value)),
                    _ => {
                        let value = u64::from(slot.value as u32) | u64::from(second.value as u32) << 32;
                        Instruction::LoadImmediate(to, value)
                    }
                }
            } else {
                slot.instruction().ok_or(undecodable)?
            };
            at += instruction.slots();
            code.push(instruction);
        }
        if chunks.remainder().is_empty() { Ok(Code(code)) } else { Err(Undecodable { slot: at }) }
    }
}

fn slots(instruction: &Instruction, map: &impl Fn(u32) -> i32) -> [Option<Slot>; 2] {
    let (to, offset, value) = match *instruction {
        Instruction::LoadImmediate(to, value) => {
            let first = Slot { code: LOAD_IMMEDIATE, to: to as u8, value: value as i32, ..Slot::default() };
            let second = Slot { value: (value >> 32) as i32, ..Slot::default() };
            return [Some(first), Some(second)];
        }
        Instruction::LoadMap(to, index) => {
            let value = map(index);
            let first = Slot { code: LOAD_IMMEDIATE, to: to as u8, from: MAP, value, ..Slot::default() };
            return [Some(first), Some(Slot::default())];
        }
        Instruction::Arithmetic(operation, to, from) => {
            return [Some(with_operand(ARITHMETIC | bits(&OPERATIONS, operation), to, from, 0)), None];
        }
        Instruction::JumpIf { comparison, left, right, distance } => {
            return [Some(with_operand(JUMP | bits(&COMPARISONS, comparison), left, right, distance)), None];
        }
        Instruction::Load { to, offset, .. } => (to, offset, 0),
        Instruction::Store { to, offset, .. } | Instruction::AtomicAdd { to, offset, .. } => (to, offset, 0),
        Instruction::StoreImmediate { to, offset, value, .. } => (to, offset, value),
        Instruction::Jump { distance } => (Register::R0, distance, 0),
        Instruction::Call(function) => (Register::R0, 0, function as i32),
        Instruction::Exit => (Register::R0, 0, 0),
    };
    let (code, from) = match *instruction {
        Instruction::Load { size, from, .. } => (LOAD | bits(&SIZES, size), from),
        Instruction::Store { size, from, .. } => (STORE | bits(&SIZES, size), from),
        Instruction::AtomicAdd { size, from, .. } => (ATOMIC | bits(&SIZES, size), from),
        Instruction::StoreImmediate { size, .. } => (STORE_CONSTANT | bits(&SIZES, size), Register::R0),
        Instruction::Jump { .. } => (JUMP, Register::R0),
        Instruction::Call(_) => (CALL, Register::R0),
        _ => (EXIT, Register::R0),
    };
    [Some(Slot { code, to: to as u8, from: from as u8, offset, value }), None]
}

fn with_operand(code: u8, to: Register, operand: Operand, offset: i16) -> Slot {
    let to = to as u8;
    match operand {
        Operand::Register(from) => {
            Slot { code: code | FROM_REGISTER, to, from: from as u8, offset, value: 0 }
        }
        Operand::Constant(value) => Slot { code, to, from: 0, offset, value },
    }
}

impl Slot {
    /// Which half of the second byte is which register depends on the byte order, as for all bit fields of C.
    fn bytes(self) -> [u8; 8] {
        let registers =
            if cfg!(target_endian = "big") { self.to << 4 | self.from } else { self.from << 4 | self.to };
        let ([o0, o1], [v0, v1, v2, v3]) = (self.offset.to_ne_bytes(), self.value.to_ne_bytes());
        [self.code, registers, o0, o1, v0, v1, v2, v3]
    }

    fn of(bytes: &[u8]) -> Option<Slot> {
        let [code, registers, o0, o1, v0, v1, v2, v3] = *<&[u8; 8]>::try_from(bytes).ok()?;
        let (high, low) = (registers >> 4, registers & 15);
        let (to, from) = if cfg!(target_endian = "big") { (high, low) } else { (low, high) };
        let (offset, value) = (i16::from_ne_bytes([o0, o1]), i32::from_ne_bytes([v0, v1, v2, v3]));
        Some(Slot { code, to, from, offset, value })
    }

    /// Decodes an instruction that has one slot.
    fn instruction(self) -> Option<Instruction> {
        let Slot { code, offset, value, .. } = self;
        let (to, from) = (register(self.to)?, register(self.from)?);
        let size = known(&SIZES, code & 0x18);
        let operand =
            if code & FROM_REGISTER == 0 { Operand::Constant(value) } else { Operand::Register(from) };
        Some(match (code, code & !0x18) {
            (EXIT, _) => Instruction::Exit,
            (CALL, _) => Instruction::Call(KernelFunction::ALL.into_iter().find(|it| *it as i32 == value)?),
            (JUMP, _) => Instruction::Jump { distance: offset },
            (_, LOAD) => Instruction::Load { size: size?, to, from, offset },
            (_, STORE) => Instruction::Store { size: size?, to, offset, from },
            (_, STORE_CONSTANT) => Instruction::StoreImmediate { size: size?, to, offset, value },
            (_, ATOMIC) if value == 0 => Instruction::AtomicAdd { size: size?, to, offset, from },
            _ if code & 7 == ARITHMETIC => {
                Instruction::Arithmetic(known(&OPERATIONS, code & 0xf0)?, to, operand)
            }
            _ if code & 7 == JUMP => {
                let comparison = known(&COMPARISONS, code & 0xf0)?;
                Instruction::JumpIf { comparison, left: to, right: operand, distance: offset }
            }
            _ => return None,
        })
    }
}

fn register(number: u8) -> Option<Register> {
    Register::ALL.get(usize::from(number)).copied()
}

fn bits<T: PartialEq>(table: &[(T, u8)], wanted: T) -> u8 {
    table.iter().find(|(value, _)| *value == wanted).map_or(0, |(_, bits)| *bits)
}

fn known<T: Copy>(table: &[(T, u8)], wanted: u8) -> Option<T> {
    table.iter().find(|(_, bits)| *bits == wanted).map(|(value, _)| *value)
}

/// A line for each instruction, with the number of its slot.
impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut slot = 0;
        for instruction in &self.0 {
            writeln!(f, "{slot:4}: {instruction}")?;
            slot += instruction.slots();
        }
        Ok(())
    }
}

impl fmt::Display for Undecodable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} has an unknown instruction", self.slot)
    }
}

impl Error for Undecodable {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::select;

    fn instructions() -> impl Strategy<Value = Instruction> {
        let register = || select(Register::ALL.to_vec());
        let operand =
            prop_oneof![register().prop_map(Operand::Register), any::<i32>().prop_map(Operand::Constant)];
        let size = select(SIZES.map(|(size, _)| size).to_vec());
        let operations = select(OPERATIONS.map(|(it, _)| it).to_vec());
        let comparisons = select(COMPARISONS.map(|(it, _)| it).to_vec());
        let parts = (register(), register(), operand, size, any::<i16>(), any::<i32>(), any::<u64>());
        (0..11, parts, operations, comparisons, select(KernelFunction::ALL.to_vec())).prop_map(
            |(kind, (to, from, operand, size, offset, value, long), operation, comparison, function)| {
                match kind {
                    0 => Instruction::Arithmetic(operation, to, operand),
                    1 => Instruction::LoadImmediate(to, long),
                    2 => Instruction::LoadMap(to, value as u32),
                    3 => Instruction::Load { size, to, from, offset },
                    4 => Instruction::Store { size, to, offset, from },
                    5 => Instruction::StoreImmediate { size, to, offset, value },
                    6 => Instruction::AtomicAdd { size, to, offset, from },
                    7 => Instruction::JumpIf { comparison, left: to, right: operand, distance: offset },
                    8 => Instruction::Jump { distance: offset },
                    9 => Instruction::Call(function),
                    _ => Instruction::Exit,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes_to_the_same(code in proptest::collection::vec(instructions(), 0..40)) {
            let code = Code(code);
            let bytes = code.encode(|map| map as i32);
            prop_assert_eq!(bytes.len(), code.slots() * 8);
            prop_assert_eq!(Code::decode(&bytes, |map| map as u32), Ok(code));
        }

        #[test]
        fn any_bytes_decode_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Code::decode(&bytes, |map| map as u32);
        }
    }

    /// Known bytes: `r0 = 1; exit`, as every description of BPF has them.
    #[cfg(target_endian = "little")]
    #[test]
    fn the_smallest_program() {
        let code = Code(vec![
            Instruction::Arithmetic(Arithmetic::Move, Register::R0, Operand::Constant(1)),
            Instruction::Exit,
        ]);
        let expected = [[0xb7, 0, 0, 0, 1, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]].concat();
        assert_eq!(code.encode(|_| 0), expected);
        assert_eq!(code.to_string(), "   0: r0 = 1\n   1: exit\n");
    }
}
