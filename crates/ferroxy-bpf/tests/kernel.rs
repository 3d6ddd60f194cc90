//! Ring 1: the kernel accepts what we write, and does with it what our interpreter does.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the functions that tests share are tests too; clippy does not know")]

use std::collections::{BTreeMap, HashMap};

use ferroxy_bpf::kernel::{Errno, Map, MapKind, MapShape, Program};
use ferroxy_bpf::machine::{Context, World, run};
use ferroxy_bpf::{Arithmetic, Assembler, Code, Comparison, KernelFunction, Operand, Register, Size};
use ferroxy_lab::{Capability, require};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;

use Register::{R0, R1, R2, R3, R4, R5, R6, R10};

fn hash(capacity: u32) -> Map {
    let shape = MapShape { kind: MapKind::Hash, key: 4, value: 8, capacity };
    Map::create("test", shape, true).unwrap()
}

fn key(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

fn value(number: u64) -> [u8; 8] {
    number.to_ne_bytes()
}

fn content(map: &Map) -> BTreeMap<u32, u64> {
    let mut found = BTreeMap::new();
    map.for_each(|key, value| {
        found.insert(
            u32::from_ne_bytes(key.try_into().unwrap()),
            u64::from_ne_bytes(value.try_into().unwrap()),
        );
    })
    .unwrap();
    found
}

#[test]
fn elements_are_written_read_and_deleted() {
    if !require(&[Capability::SocketPrograms]) {
        return;
    }
    let map = hash(100);
    assert_eq!(content(&map), BTreeMap::new());
    map.update(&key(1), &value(10)).unwrap();
    map.update(&key(2), &value(20)).unwrap();
    map.update(&key(1), &value(11)).unwrap();
    assert_eq!(map.lookup(&key(1)).unwrap(), Some(value(11).to_vec()));
    assert_eq!(map.lookup(&key(3)).unwrap(), None);
    assert!(map.delete(&key(2)).unwrap() && !map.delete(&key(2)).unwrap());
    assert_eq!(content(&map), BTreeMap::from([(1, 11)]));
    assert_eq!(
        map.update(&[1], &value(1)).unwrap_err().errno,
        Errno::INVAL,
        "a short key never reaches the kernel"
    );
}

#[test]
fn many_elements_are_written_and_read_at_once_and_a_full_map_says_so() {
    if !require(&[Capability::SocketPrograms]) {
        return;
    }
    let many = 10_000_u32;
    let keys: Vec<u8> = (0..many).flat_map(key).collect();
    let values: Vec<u8> = (0..many).flat_map(|it| value(u64::from(it) * 3)).collect();
    let map = hash(many);
    let (written, result) = map.update_all(&keys, &values);
    assert_eq!((written, result), (many as usize, Ok(())));
    assert_eq!(content(&map), (0..many).map(|it| (it, u64::from(it) * 3)).collect());
    assert!(map.update(&key(many), &value(0)).unwrap_err().is_full());

    let small = hash(5000);
    let (written, result) = small.update_all(&keys, &values);
    assert!(result.unwrap_err().is_full());
    assert_eq!(content(&small).len(), written);
    assert!((4000..=5000).contains(&written), "{written}");
}

#[test]
fn a_refused_program_comes_with_the_verifiers_words() {
    if !require(&[Capability::SocketPrograms]) {
        return;
    }
    let mut program = Assembler::new();
    program.set(R0, R6).exit();
    let error = Program::load_for_test("bad", &program.finish().unwrap(), &[]).unwrap_err();
    assert!(error.explanation.as_deref().unwrap_or_default().contains("R6 !read_ok"), "{error}");
}

/// A world for programs that use one map and nothing else.
struct OneMap(HashMap<Vec<u8>, Vec<u8>>);

impl World for OneMap {
    fn sizes(&self, _: u32) -> (usize, usize) {
        (4, 8)
    }
    fn lookup(&mut self, _: u32, key: &[u8]) -> Option<Vec<u8>> {
        self.0.get(key).cloned()
    }
    fn update(&mut self, _: u32, key: &[u8], value: &[u8]) {
        self.0.insert(key.to_vec(), value.to_vec());
    }
    fn delete(&mut self, _: u32, key: &[u8]) {
        self.0.remove(key);
    }
    fn storage(&mut self, _: u32, _: bool) -> Option<Vec<u8>> {
        None
    }
    fn monotonic_time(&mut self) -> u64 {
        0
    }
    fn namespace_cookie(&mut self) -> u64 {
        0
    }
}

/// One line of a random program.
#[derive(Debug, Clone)]
enum Line {
    Calculate(Arithmetic, Register, Operand),
    /// Skips the next line.
    SkipIf(Comparison, Register, Operand),
    ToStack(Size, Register),
    FromStack(Size, Register),
    /// Adds one to the element with this key, if there is one.
    Count(i32),
    Delete(i32),
    Update(i32, i32),
}

fn lines() -> impl Strategy<Value = Line> {
    let register = || select(vec![R0, R6, Register::R7, Register::R8]);
    let operand =
        || prop_oneof![register().prop_map(Operand::Register), any::<i32>().prop_map(Operand::Constant)];
    let operation = select(vec![
        Arithmetic::Move,
        Arithmetic::Add,
        Arithmetic::Subtract,
        Arithmetic::Multiply,
        Arithmetic::Or,
        Arithmetic::And,
    ]);
    let comparison =
        select(vec![Comparison::Equal, Comparison::NotEqual, Comparison::Greater, Comparison::AnyBit]);
    let size = || select(vec![Size::Byte, Size::Half, Size::Word, Size::Double]);
    prop_oneof![
        4 => (operation, register(), operand()).prop_map(|(a, b, c)| Line::Calculate(a, b, c)),
        // The verifier refuses other constants here: a shift by 64 bits and a division by zero.
        1 => (select(vec![Arithmetic::ShiftLeft, Arithmetic::ShiftRight]), register(), 0..64)
            .prop_map(|(it, a, b)| Line::Calculate(it, a, Operand::Constant(b))),
        1 => (register(), 1..9999).prop_map(|(a, b)| Line::Calculate(Arithmetic::Modulo, a, Operand::Constant(b))),
        1 => (register(), register()).prop_map(|(a, b)| Line::Calculate(Arithmetic::Modulo, a, b.into())),
        3 => (comparison, register(), operand()).prop_map(|(a, b, c)| Line::SkipIf(a, b, c)),
        2 => (size(), register()).prop_map(|(a, b)| Line::ToStack(a, b)),
        2 => (size(), register()).prop_map(|(a, b)| Line::FromStack(a, b)),
        1 => (0..3).prop_map(Line::Count),
        1 => (0..3).prop_map(Line::Delete),
        1 => (0..3, any::<i32>()).prop_map(|(a, b)| Line::Update(a, b)),
    ]
}

fn assemble(lines: &[Line]) -> Code {
    let mut program = Assembler::new();
    for (number, register) in [R0, R6, Register::R7, Register::R8].into_iter().enumerate() {
        program.set_long(register, 0x1234_5678_9abc_def0 >> (number * 8));
    }
    program.store(Size::Double, R10, -8, R6);
    let mut skips = Vec::new();
    for line in lines {
        let skipped = std::mem::take(&mut skips);
        write(&mut program, line, &mut skips);
        for label in skipped {
            program.place(label);
        }
    }
    for label in skips {
        program.place(label);
    }
    // The kernel's result has 32 bits.
    program.set(R1, R0).arithmetic(Arithmetic::ShiftRight, R1, 32).add(R0, R1).add(R0, R6);
    program.set_long(R2, 0xffff_ffff).arithmetic(Arithmetic::And, R0, R2).exit();
    program.finish().unwrap()
}

fn write(program: &mut Assembler, line: &Line, skips: &mut Vec<ferroxy_bpf::Label>) {
    let call = |program: &mut Assembler, key: i32, function| {
        program.store(Size::Double, R10, -24, R0).store_constant(Size::Word, R10, -12, key);
        program.set_map(R1, 0).set(R2, R10).add(R2, -12);
        if function == KernelFunction::MapUpdate {
            program.set(R3, R10).add(R3, -40).set(R4, 0);
        }
        program.call(function);
    };
    match *line {
        Line::Calculate(operation, to, from) => _ = program.arithmetic(operation, to, from),
        Line::SkipIf(comparison, left, right) => {
            let label = program.label();
            program.jump_if(left, comparison, right, label);
            skips.push(label);
        }
        Line::ToStack(size, from) => _ = program.store(size, R10, -8, from),
        Line::FromStack(size, to) => _ = program.load(size, to, R10, -8),
        Line::Count(key) => {
            call(program, key, KernelFunction::MapLookup);
            let missing = program.label();
            program.jump_if(R0, Comparison::Equal, 0, missing);
            program.set(R5, 1).atomic_add(Size::Double, R0, 0, R5);
            program.place(missing).load(Size::Double, R0, R10, -24);
        }
        Line::Delete(key) => {
            call(program, key, KernelFunction::MapDelete);
            program.load(Size::Double, R0, R10, -24);
        }
        Line::Update(key, number) => {
            program.store_constant(Size::Double, R10, -40, number);
            call(program, key, KernelFunction::MapUpdate);
            program.load(Size::Double, R0, R10, -24);
        }
    }
}

#[test]
fn the_kernel_and_the_interpreter_agree_about_random_programs() {
    if !require(&[Capability::SocketPrograms]) {
        return;
    }
    let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/kernel.txt");
    let config = ferroxy_core::testing::config(400, kept);
    let programs = proptest::collection::vec(lines(), 0..30);
    let agree = |lines: Vec<Line>| {
        let code = assemble(&lines);
        let map = hash(16);
        map.update(&key(1), &value(100)).unwrap();
        let program = Program::load_for_test("random", &code, &[&map]);
        let program = program.map_err(|error| TestCaseError::fail(format!("{error}\n{code}")))?;
        let (result, _) = program.test(&[0; 64]).unwrap();

        let mut world = OneMap(HashMap::from([(key(1).to_vec(), value(100).to_vec())]));
        let ours = run(&code, &mut world, &mut Context::default());
        prop_assert_eq!(ours, Ok(u64::from(result)), "\n{}", code);
        let number = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let (key, value) = (key.as_slice().try_into().unwrap(), value.as_slice().try_into().unwrap());
            (u32::from_ne_bytes(key), u64::from_ne_bytes(value))
        };
        prop_assert_eq!(content(&map), world.0.iter().map(number).collect::<BTreeMap<_, _>>(), "\n{}", code);
        Ok(())
    };
    TestRunner::new(config).run(&programs, agree).unwrap();
}
