//! Writes a program from top to bottom. Jumps refer to a label, which may be placed later.

use std::error::Error;
use std::fmt;

use crate::code::Code;
use crate::instruction::{Arithmetic, Comparison, Instruction, KernelFunction, Operand, Register, Size};

/// A place in a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label(usize);

#[derive(Debug, Default)]
pub struct Assembler {
    written: Vec<(Instruction, Option<Label>)>,
    /// The position of each label, in instructions.
    places: Vec<Option<usize>>,
}

/// A label without a place, or one that is too far away to jump to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unresolved(Label);

impl Assembler {
    pub fn new() -> Assembler {
        Assembler::default()
    }

    /// A label to jump to, which is [placed](Assembler::place) later.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places the label at the next instruction.
    pub fn place(&mut self, label: Label) -> &mut Assembler {
        self.places[label.0] = Some(self.written.len());
        self
    }

    pub fn set(&mut self, to: Register, from: impl Into<Operand>) -> &mut Assembler {
        self.arithmetic(Arithmetic::Move, to, from)
    }

    pub fn add(&mut self, to: Register, from: impl Into<Operand>) -> &mut Assembler {
        self.arithmetic(Arithmetic::Add, to, from)
    }

    pub fn arithmetic(
        &mut self,
        operation: Arithmetic,
        to: Register,
        from: impl Into<Operand>,
    ) -> &mut Assembler {
        self.write(Instruction::Arithmetic(operation, to, from.into()))
    }

    pub fn set_long(&mut self, to: Register, value: u64) -> &mut Assembler {
        self.write(Instruction::LoadImmediate(to, value))
    }

    pub fn set_map(&mut self, to: Register, map: u32) -> &mut Assembler {
        self.write(Instruction::LoadMap(to, map))
    }

    pub fn load(&mut self, size: Size, to: Register, from: Register, offset: i16) -> &mut Assembler {
        self.write(Instruction::Load { size, to, from, offset })
    }

    pub fn store(&mut self, size: Size, to: Register, offset: i16, from: Register) -> &mut Assembler {
        self.write(Instruction::Store { size, to, offset, from })
    }

    pub fn store_constant(&mut self, size: Size, to: Register, offset: i16, value: i32) -> &mut Assembler {
        self.write(Instruction::StoreImmediate { size, to, offset, value })
    }

    pub fn atomic_add(&mut self, size: Size, to: Register, offset: i16, from: Register) -> &mut Assembler {
        self.write(Instruction::AtomicAdd { size, to, offset, from })
    }

    pub fn jump_if(
        &mut self,
        left: Register,
        comparison: Comparison,
        right: impl Into<Operand>,
        to: Label,
    ) -> &mut Assembler {
        let jump = Instruction::JumpIf { comparison, left, right: right.into(), distance: 0 };
        self.written.push((jump, Some(to)));
        self
    }

    pub fn jump(&mut self, to: Label) -> &mut Assembler {
        self.written.push((Instruction::Jump { distance: 0 }, Some(to)));
        self
    }

    pub fn call(&mut self, function: KernelFunction) -> &mut Assembler {
        self.write(Instruction::Call(function))
    }

    pub fn exit(&mut self) -> &mut Assembler {
        self.write(Instruction::Exit)
    }

    fn write(&mut self, instruction: Instruction) -> &mut Assembler {
        self.written.push((instruction, None));
        self
    }

    /// The program, with the labels of its jumps resolved to distances.
    pub fn finish(&self) -> Result<Code, Unresolved> {
        let mut slots = vec![0];
        for (instruction, _) in &self.written {
            slots.push(slots[slots.len() - 1] + instruction.slots());
        }
        let mut code = Vec::with_capacity(self.written.len());
        for (position, (instruction, label)) in self.written.iter().enumerate() {
            let mut instruction = *instruction;
            if let (Some(label), Instruction::Jump { distance } | Instruction::JumpIf { distance, .. }) =
                (label, &mut instruction)
            {
                let unresolved = || Unresolved(*label);
                let target = self.places[label.0].ok_or_else(unresolved)?;
                let far = slots[target] as i64 - slots[position + 1] as i64;
                *distance = i16::try_from(far).map_err(|_| unresolved())?;
            }
            code.push(instruction);
        }
        Ok(Code(code))
    }
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "label {} of a program leads nowhere, or too far away", self.0.0)
    }
}

impl Error for Unresolved {}

#[cfg(test)]
mod tests {
    use super::*;
    use Register::{R0, R1};

    #[test]
    fn jumps_count_slots_and_not_instructions() {
        let mut program = Assembler::new();
        let (end, back) = (program.label(), program.label());
        program.place(back).jump_if(R1, Comparison::Equal, 0, end).set_long(R0, 1).jump(back);
        program.place(end).exit();
        let code = program.finish().unwrap();
        assert!(matches!(code.0[0], Instruction::JumpIf { distance: 3, .. }), "{code}");
        assert_eq!(code.0[2], Instruction::Jump { distance: -4 });
    }

    #[test]
    fn a_label_without_a_place_is_an_error() {
        let mut program = Assembler::new();
        let nowhere = program.label();
        program.jump(nowhere).exit();
        assert_eq!(program.finish(), Err(Unresolved(nowhere)));
    }
}
