//! One instruction as a value: the part of BPF that our programs use. Encoding is in `code.rs`.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    Arithmetic(Arithmetic, Register, Operand),
    /// A constant of 64 bits. Takes two slots.
    LoadImmediate(Register, u64),
    /// The address of a map, by its position in the list of maps that a program is loaded with. Takes two slots.
    LoadMap(Register, u32),
    Load {
        size: Size,
        to: Register,
        from: Register,
        offset: i16,
    },
    Store {
        size: Size,
        to: Register,
        offset: i16,
        from: Register,
    },
    StoreImmediate {
        size: Size,
        to: Register,
        offset: i16,
        value: i32,
    },
    /// Adds a register to memory, atomically.
    AtomicAdd {
        size: Size,
        to: Register,
        offset: i16,
        from: Register,
    },
    /// Jumps over `distance` slots if the comparison is true. `distance` counts from the next instruction.
    JumpIf {
        comparison: Comparison,
        left: Register,
        right: Operand,
        distance: i16,
    },
    Jump {
        distance: i16,
    },
    Call(KernelFunction),
    Exit,
}

impl Instruction {
    /// How many slots of eight bytes it takes.
    pub fn slots(&self) -> usize {
        match self {
            Instruction::LoadImmediate(..) | Instruction::LoadMap(..) => 2,
            _ => 1,
        }
    }
}

/// R0 is the result, R1 to R5 are arguments and lost in a call, R6 to R9 survive it, R10 is the end of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

impl Register {
    pub const ALL: [Register; 11] = [
        Register::R0,
        Register::R1,
        Register::R2,
        Register::R3,
        Register::R4,
        Register::R5,
        Register::R6,
        Register::R7,
        Register::R8,
        Register::R9,
        Register::R10,
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand {
    Register(Register),
    /// Sign-extended to 64 bits.
    Constant(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Operand {
        Operand::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(constant: i32) -> Operand {
        Operand::Constant(constant)
    }
}

/// Operations on unsigned numbers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    Move,
    Add,
    Subtract,
    Multiply,
    Or,
    And,
    ShiftLeft,
    ShiftRight,
    Modulo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Greater,
    /// `left & right` is not zero.
    AnyBit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    Byte,
    Half,
    Word,
    Double,
}

impl Size {
    pub fn bytes(self) -> usize {
        match self {
            Size::Byte => 1,
            Size::Half => 2,
            Size::Word => 4,
            Size::Double => 8,
        }
    }
}

/// Functions of the kernel, with the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum KernelFunction {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    /// Nanoseconds since boot.
    MonotonicTime = 5,
    SocketStorageGet = 107,
    SocketStorageDelete = 108,
    /// Available to programs for socket addresses since Linux 5.7.
    NamespaceCookie = 122,
}

impl KernelFunction {
    pub const ALL: [KernelFunction; 7] = [
        KernelFunction::MapLookup,
        KernelFunction::MapUpdate,
        KernelFunction::MapDelete,
        KernelFunction::MonotonicTime,
        KernelFunction::SocketStorageGet,
        KernelFunction::SocketStorageDelete,
        KernelFunction::NamespaceCookie,
    ];
}

/// Similar to the output of `bpftool prog dump xlated`.
impl fmt::Display for Instruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Instruction::Arithmetic(Arithmetic::Move, to, from) => write!(f, "{to} = {from}"),
            Instruction::Arithmetic(operation, to, from) => write!(f, "{to} {operation}= {from}"),
            Instruction::LoadImmediate(to, value) => write!(f, "{to} = {value:#x} ll"),
            Instruction::LoadMap(to, map) => write!(f, "{to} = map[{map}]"),
            Instruction::Load { size, to, from, offset } => {
                write!(f, "{to} = *({size} *)({from} {offset:+})")
            }
            Instruction::Store { size, to, offset, from } => {
                write!(f, "*({size} *)({to} {offset:+}) = {from}")
            }
            Instruction::StoreImmediate { size, to, offset, value } => {
                write!(f, "*({size} *)({to} {offset:+}) = {value}")
            }
            Instruction::AtomicAdd { size, to, offset, from } => {
                write!(f, "lock *({size} *)({to} {offset:+}) += {from}")
            }
            Instruction::JumpIf { comparison, left, right, distance } => {
                write!(f, "if {left} {comparison} {right} goto {distance:+}")
            }
            Instruction::Jump { distance } => write!(f, "goto {distance:+}"),
            Instruction::Call(function) => write!(f, "call {function:?}#{}", *function as i32),
            Instruction::Exit => f.write_str("exit"),
        }
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", *self as u8)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operand::Register(register) => register.fmt(f),
            Operand::Constant(constant) => constant.fmt(f),
        }
    }
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Arithmetic::Move => "",
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Or => "|",
            Arithmetic::And => "&",
            Arithmetic::ShiftLeft => "<<",
            Arithmetic::ShiftRight => ">>",
            Arithmetic::Modulo => "%",
        })
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Comparison::Equal => "==",
            Comparison::NotEqual => "!=",
            Comparison::Greater => ">",
            Comparison::AnyBit => "&",
        })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{}", self.bytes() * 8)
    }
}
