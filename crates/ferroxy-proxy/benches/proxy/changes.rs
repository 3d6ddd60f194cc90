//! One endpoint change among ten Services and among ten thousand.

use std::time::{Duration, Instant};

use ferroxy_proxy::{Change, Engine, Frontend, Pool, Settings};

pub fn run() {
    let (few, many) = (median(10), median(10_000));
    println!("\none endpoint change: {few:?} among 10 Services, {many:?} among 10,000");
}

fn median(services: u32) -> Duration {
    let engine = Engine::start(Settings::default()).unwrap();
    let mut change = Change::default();
    for service in 0..services {
        let [_, high, middle, low] = service.to_be_bytes();
        let frontend = Frontend::redirected((([10, 96 + high, middle, low]), 80).into());
        change.set_frontend(format!("{service}"), frontend.to(format!("{service}")));
        change.set_pool(format!("{service}"), pool(service, 0));
    }
    assert!(engine.apply(change).failures.is_empty());
    let mut times: Vec<Duration> = (0..2000u32)
        .map(|round| {
            let service = round * 7919 % services;
            let mut change = Change::default();
            change.set_pool(format!("{service}"), pool(service, 1 + round as u8 % 2));
            let begun = Instant::now();
            engine.apply(change);
            begun.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

fn pool(service: u32, moved: u8) -> Pool {
    let [.., middle, low] = service.to_be_bytes();
    Pool::of(
        (0..10)
            .map(|it| (([10, 200, middle, low]), 8000 + it + u16::from(it == 9) * u16::from(moved)).into()),
    )
}
