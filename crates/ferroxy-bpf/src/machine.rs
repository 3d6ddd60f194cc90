//! Executes a program as the kernel does, over maps that are values. An instruction that the kernel's verifier refuses is a
//! [`Fault`] here, if it is executed.

use std::error::Error;
use std::fmt;

use crate::code::Code;
use crate::instruction::{Arithmetic, Comparison, Instruction, KernelFunction, Operand, Register, Size};

/// The maps, clocks and cookies that a program can reach through functions of the kernel.
pub trait World {
    /// The sizes of a map's keys and values.
    fn sizes(&self, map: u32) -> (usize, usize);

    fn lookup(&mut self, map: u32, key: &[u8]) -> Option<Vec<u8>>;

    /// Sets an element; also called when the program writes into a value that it looked up.
    fn update(&mut self, map: u32, key: &[u8], value: &[u8]);

    fn delete(&mut self, map: u32, key: &[u8]);

    /// Data of the socket; `create` makes empty data if there is none.
    fn storage(&mut self, map: u32, create: bool) -> Option<Vec<u8>>;

    fn monotonic_time(&mut self) -> u64;

    fn namespace_cookie(&mut self) -> u64;
}

/// The argument of a program: memory that it reads and writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Context {
    pub memory: Vec<u8>,
    /// The offset of the socket's address in `memory`, and the memory at that address.
    pub socket_at: usize,
    pub socket: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An access outside of the memory that an address leads to, or through a register that is no address.
    Memory { slot: usize },
    /// A register or a byte of the stack is read before it was written.
    Uninitialised { slot: usize },
    /// Invalid arithmetic or comparison of addresses, or a write to read-only memory.
    Refused { slot: usize },
    /// A jump to a slot without an instruction, or a missing exit.
    Lost { slot: usize },
    /// More steps than any program of ours takes.
    Endless,
}

const STACK: usize = 512;
const MOST_STEPS: usize = 100_000;

/// The content of a register.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    Nothing,
    Number(u64),
    Address(Region, i64),
    Map(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Region {
    Context,
    Socket,
    Stack,
    /// A value that was looked up, by its position.
    Value(usize),
}

/// A value of a map that the program has an address of. `key: None`: the storage of the socket.
#[derive(Debug)]
struct Found {
    map: u32,
    key: Option<Vec<u8>>,
    value: Vec<u8>,
}

struct Machine<'a> {
    world: &'a mut dyn World,
    context: &'a mut Context,
    registers: [Word; 11],
    stack: [Option<u8>; STACK],
    found: Vec<Found>,
    /// The slot of the current instruction.
    slot: usize,
}

/// Runs a program to its end; returns its result (R0).
pub fn run(code: &Code, world: &mut dyn World, context: &mut Context) -> Result<u64, Fault> {
    let mut by_slot = Vec::new();
    for (index, instruction) in code.0.iter().enumerate() {
        by_slot.extend((0..instruction.slots()).map(|part| (part == 0).then_some(index)));
    }
    let mut machine = Machine::new(world, context);
    for _ in 0..MOST_STEPS {
        let slot = machine.slot;
        let index = by_slot.get(slot).copied().flatten().ok_or(Fault::Lost { slot })?;
        let instruction = code.0.get(index).ok_or(Fault::Lost { slot })?;
        if *instruction == Instruction::Exit {
            return machine.number(Register::R0);
        }
        let distance = machine.step(instruction)?;
        let next = (slot + instruction.slots()) as i64 + i64::from(distance);
        machine.slot = usize::try_from(next).map_err(|_| Fault::Lost { slot })?;
    }
    Err(Fault::Endless)
}

impl<'a> Machine<'a> {
    fn new(world: &'a mut dyn World, context: &'a mut Context) -> Machine<'a> {
        let mut registers = [const { Word::Nothing }; 11];
        registers[Register::R1 as usize] = Word::Address(Region::Context, 0);
        registers[Register::R10 as usize] = Word::Address(Region::Stack, STACK as i64);
        Machine { world, context, registers, stack: [None; STACK], found: Vec::new(), slot: 0 }
    }

    /// Executes one instruction; returns how far to jump.
    fn step(&mut self, instruction: &Instruction) -> Result<i16, Fault> {
        match *instruction {
            Instruction::Arithmetic(operation, to, from) => self.calculate(operation, to, from)?,
            Instruction::LoadImmediate(to, value) => self.put(to, Word::Number(value)),
            Instruction::LoadMap(to, map) => self.put(to, Word::Map(map)),
            Instruction::Load { size, to, from, offset } => {
                let word = self.read(from, offset, size)?;
                self.put(to, word);
            }
            Instruction::Store { size, to, offset, from } => {
                let value = self.number(from)?;
                self.write(to, offset, size, value)?;
            }
            Instruction::StoreImmediate { size, to, offset, value } => {
                self.write(to, offset, size, i64::from(value) as u64)?;
            }
            Instruction::AtomicAdd { size, to, offset, from } => {
                let Word::Number(before) = self.read(to, offset, size)? else {
                    return Err(Fault::Refused { slot: self.slot });
                };
                let sum = before.wrapping_add(self.number(from)?);
                self.write(to, offset, size, sum)?;
            }
            Instruction::JumpIf { comparison, left, right, distance } => {
                return Ok(if self.compare(comparison, left, right)? { distance } else { 0 });
            }
            Instruction::Jump { distance } => return Ok(distance),
            Instruction::Call(function) => self.call(function)?,
            Instruction::Exit => {}
        }
        Ok(0)
    }

    fn put(&mut self, to: Register, word: Word) {
        self.registers[to as usize] = word;
    }

    fn word(&self, register: Register) -> Result<Word, Fault> {
        match &self.registers[register as usize] {
            Word::Nothing => Err(Fault::Uninitialised { slot: self.slot }),
            word => Ok(word.clone()),
        }
    }

    fn number(&self, register: Register) -> Result<u64, Fault> {
        match self.word(register)? {
            Word::Number(number) => Ok(number),
            _ => Err(Fault::Refused { slot: self.slot }),
        }
    }

    fn operand(&self, operand: Operand) -> Result<Word, Fault> {
        match operand {
            Operand::Register(register) => self.word(register),
            Operand::Constant(constant) => Ok(Word::Number(i64::from(constant) as u64)),
        }
    }

    fn calculate(&mut self, operation: Arithmetic, to: Register, from: Operand) -> Result<(), Fault> {
        let right = self.operand(from)?;
        if operation == Arithmetic::Move {
            self.put(to, right);
            return Ok(());
        }
        let word = match (self.word(to)?, right) {
            (Word::Number(left), Word::Number(right)) => Word::Number(match operation {
                Arithmetic::Move => right,
                Arithmetic::Add => left.wrapping_add(right),
                Arithmetic::Subtract => left.wrapping_sub(right),
                Arithmetic::Multiply => left.wrapping_mul(right),
                Arithmetic::Or => left | right,
                Arithmetic::And => left & right,
                Arithmetic::ShiftLeft => left << (right & 63),
                Arithmetic::ShiftRight => left >> (right & 63),
                // As in the kernel, the remainder of a division by zero is the number itself.
                Arithmetic::Modulo => left.checked_rem(right).unwrap_or(left),
            }),
            (Word::Address(region, at), Word::Number(right)) if operation == Arithmetic::Add => {
                Word::Address(region, at.wrapping_add(right as i64))
            }
            _ => return Err(Fault::Refused { slot: self.slot }),
        };
        self.put(to, word);
        Ok(())
    }

    fn compare(&self, comparison: Comparison, left: Register, right: Operand) -> Result<bool, Fault> {
        // Addresses are only compared with zero: "was the element found?".
        let (left, right) = match (self.word(left)?, self.operand(right)?) {
            (Word::Number(left), Word::Number(right)) => (left, right),
            (Word::Address(..), Word::Number(0)) => (1, 0),
            _ => return Err(Fault::Refused { slot: self.slot }),
        };
        Ok(match comparison {
            Comparison::Equal => left == right,
            Comparison::NotEqual => left != right,
            Comparison::Greater => left > right,
            Comparison::AnyBit => left & right != 0,
        })
    }

    /// The region that an address leads to, and where in it.
    fn at(&self, base: Register, offset: i16) -> Result<(Region, usize), Fault> {
        let fault = Fault::Memory { slot: self.slot };
        let Word::Address(region, at) = self.word(base)? else { return Err(fault) };
        Ok((region, usize::try_from(at + i64::from(offset)).map_err(|_| fault)?))
    }

    fn read(&self, base: Register, offset: i16, size: Size) -> Result<Word, Fault> {
        let (region, at) = self.at(base, offset)?;
        if region == Region::Context && at == self.context.socket_at && size == Size::Double {
            return Ok(Word::Address(Region::Socket, 0));
        }
        let bytes = self.bytes(region, at, size.bytes())?;
        Ok(Word::Number(number_of(&bytes)))
    }

    fn bytes(&self, region: Region, at: usize, length: usize) -> Result<Vec<u8>, Fault> {
        let fault = Fault::Memory { slot: self.slot };
        let range = at..at.checked_add(length).ok_or(fault)?;
        let memory = match region {
            Region::Stack => {
                let bytes = self.stack.get(range).ok_or(fault)?;
                let all: Option<Vec<u8>> = bytes.iter().copied().collect();
                return all.ok_or(Fault::Uninitialised { slot: self.slot });
            }
            Region::Context => &self.context.memory,
            Region::Socket => &self.context.socket,
            Region::Value(index) => &self.found.get(index).ok_or(fault)?.value,
        };
        memory.get(range).map(<[u8]>::to_vec).ok_or(fault)
    }

    fn write(&mut self, base: Register, offset: i16, size: Size, value: u64) -> Result<(), Fault> {
        let (region, at) = self.at(base, offset)?;
        let fault = Fault::Memory { slot: self.slot };
        let range = at..at + size.bytes();
        let bytes = bytes_of(value, size);
        match region {
            Region::Socket => return Err(Fault::Refused { slot: self.slot }),
            Region::Stack => {
                let memory = self.stack.get_mut(range).ok_or(fault)?;
                memory.iter_mut().zip(bytes).for_each(|(to, from)| *to = Some(from));
            }
            Region::Context => self.context.memory.get_mut(range).ok_or(fault)?.copy_from_slice(&bytes),
            Region::Value(index) => {
                let found = self.found.get_mut(index).ok_or(fault)?;
                found.value.get_mut(range).ok_or(fault)?.copy_from_slice(&bytes);
                // The storage of a socket has no key: pass an empty one.
                self.world.update(found.map, found.key.as_deref().unwrap_or_default(), &found.value);
            }
        }
        Ok(())
    }

    fn call(&mut self, function: KernelFunction) -> Result<(), Fault> {
        let result = match function {
            KernelFunction::MonotonicTime => Word::Number(self.world.monotonic_time()),
            KernelFunction::NamespaceCookie => {
                self.at(Register::R1, 0)?;
                Word::Number(self.world.namespace_cookie())
            }
            KernelFunction::MapLookup => {
                let (map, key) = self.map_and_key()?;
                let value = self.world.lookup(map, &key);
                self.found(map, Some(key), value)
            }
            KernelFunction::MapUpdate => {
                let (map, key) = self.map_and_key()?;
                let value = self.argument(Register::R3, self.world.sizes(map).1)?;
                self.world.update(map, &key, &value);
                Word::Number(0)
            }
            KernelFunction::MapDelete => {
                let (map, key) = self.map_and_key()?;
                self.world.delete(map, &key);
                Word::Number(0)
            }
            KernelFunction::SocketStorageGet => {
                let map = self.map()?;
                let create = self.number(Register::R4)? & 1 != 0;
                let value = self.world.storage(map, create);
                self.found(map, None, value)
            }
            KernelFunction::SocketStorageDelete => {
                let map = self.map()?;
                self.world.delete(map, &[]);
                Word::Number(0)
            }
        };
        self.put(Register::R0, result);
        // A call clobbers these registers.
        for register in [Register::R1, Register::R2, Register::R3, Register::R4, Register::R5] {
            self.put(register, Word::Nothing);
        }
        Ok(())
    }

    fn found(&mut self, map: u32, key: Option<Vec<u8>>, value: Option<Vec<u8>>) -> Word {
        let Some(value) = value else { return Word::Number(0) };
        self.found.push(Found { map, key, value });
        Word::Address(Region::Value(self.found.len() - 1), 0)
    }

    fn map(&self) -> Result<u32, Fault> {
        match self.word(Register::R1)? {
            Word::Map(map) => Ok(map),
            _ => Err(Fault::Refused { slot: self.slot }),
        }
    }

    fn map_and_key(&self) -> Result<(u32, Vec<u8>), Fault> {
        let map = self.map()?;
        Ok((map, self.argument(Register::R2, self.world.sizes(map).0)?))
    }

    fn argument(&self, register: Register, length: usize) -> Result<Vec<u8>, Fault> {
        let (region, at) = self.at(register, 0)?;
        self.bytes(region, at, length)
    }
}

fn number_of(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => 0,
    }
}

fn bytes_of(value: u64, size: Size) -> Vec<u8> {
    match size {
        Size::Byte => vec![value as u8],
        Size::Half => (value as u16).to_ne_bytes().to_vec(),
        Size::Word => (value as u32).to_ne_bytes().to_vec(),
        Size::Double => value.to_ne_bytes().to_vec(),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Memory { slot } => write!(f, "slot {slot} uses memory that it must not use"),
            Fault::Uninitialised { slot } => write!(f, "slot {slot} reads what was never written"),
            Fault::Refused { slot } => write!(f, "slot {slot} uses an address or a number as what it is not"),
            Fault::Lost { slot } => write!(f, "slot {slot} leads out of the program"),
            Fault::Endless => f.write_str("the program does not end"),
        }
    }
}

impl Error for Fault {}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::assembler::Assembler;
    use Register::{R0, R1, R2, R6, R10};

    #[derive(Default)]
    struct Maps(HashMap<(u32, Vec<u8>), Vec<u8>>);

    impl World for Maps {
        fn sizes(&self, _: u32) -> (usize, usize) {
            (4, 8)
        }
        fn lookup(&mut self, map: u32, key: &[u8]) -> Option<Vec<u8>> {
            self.0.get(&(map, key.to_vec())).cloned()
        }
        fn update(&mut self, map: u32, key: &[u8], value: &[u8]) {
            self.0.insert((map, key.to_vec()), value.to_vec());
        }
        fn delete(&mut self, map: u32, key: &[u8]) {
            self.0.remove(&(map, key.to_vec()));
        }
        fn storage(&mut self, _: u32, _: bool) -> Option<Vec<u8>> {
            None
        }
        fn monotonic_time(&mut self) -> u64 {
            1
        }
        fn namespace_cookie(&mut self) -> u64 {
            3
        }
    }

    fn run_program(write: impl FnOnce(&mut Assembler), maps: &mut Maps) -> Result<u64, Fault> {
        let mut program = Assembler::new();
        write(&mut program);
        run(&program.finish().unwrap(), maps, &mut Context { memory: vec![5; 8], ..Context::default() })
    }

    #[test]
    fn a_value_that_was_looked_up_is_changed_in_its_map() {
        let mut maps =
            Maps(HashMap::from([((0, 1_u32.to_ne_bytes().to_vec()), 41_u64.to_ne_bytes().to_vec())]));
        let count = |program: &mut Assembler| {
            let missing = program.label();
            program.store_constant(Size::Word, R10, -4, 1);
            program.set_map(R1, 0).set(R2, R10).add(R2, -4).call(KernelFunction::MapLookup);
            program.jump_if(R0, Comparison::Equal, 0, missing);
            program.set(R6, 1).atomic_add(Size::Double, R0, 0, R6).load(Size::Double, R0, R0, 0).exit();
            program.place(missing).set(R0, 0).exit();
        };
        assert_eq!(run_program(count, &mut maps), Ok(42));
        assert_eq!(maps.0.values().next().unwrap(), &42_u64.to_ne_bytes());
        assert_eq!(run_program(count, &mut Maps::default()), Ok(0));
    }

    #[test]
    fn what_the_verifier_refuses_is_a_fault() {
        let fault = |write: fn(&mut Assembler)| run_program(write, &mut Maps::default()).unwrap_err();
        assert_eq!(fault(|it| _ = it.exit()), Fault::Uninitialised { slot: 0 });
        assert_eq!(fault(|it| _ = it.load(Size::Word, R0, R10, -4).exit()), Fault::Uninitialised { slot: 0 });
        assert_eq!(fault(|it| _ = it.load(Size::Double, R0, R1, 4).exit()), Fault::Memory { slot: 0 });
        assert_eq!(fault(|it| _ = it.set(R0, R1).exit()), Fault::Refused { slot: 1 });
        assert_eq!(fault(|it| _ = it.set(R0, 1)), Fault::Lost { slot: 1 });
        assert_eq!(
            fault(|it| _ = it.set(R6, 0).call(KernelFunction::MonotonicTime).set(R0, R1).exit()),
            Fault::Uninitialised { slot: 2 }
        );
        let endless = |it: &mut Assembler| {
            let again = it.label();
            it.place(again).jump(again);
        };
        assert_eq!(fault(endless), Fault::Endless);
    }
}
