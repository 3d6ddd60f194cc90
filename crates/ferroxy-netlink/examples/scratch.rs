//! scratch
use ferroxy_netlink::nftables::*;
use std::collections::HashSet;
use std::time::Instant;
fn main() {
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET).unwrap() };
    for (size, count) in [(None, 150_000u32), (None, 150_000), (None, 150_000), (None,100_000), (None,400_000), (None, 20_000),(None,20_000), (Some(150_000), 150_000u32), (Some(400_000),400_000)] {
        let mut c = Connection::open().unwrap();
        let mut b = Batch::new();
        b.add_table(0, Family::Ip, &Table { name: "t".into(), comment: None });
        b.add_set(0, Family::Ip, "t", &Set { name: "s".into(), key: vec![Datatype::Ipv4Addr], data: None, interval: false, dynamic: false, timeout_ms: None, size, comment: None });
        let t = Instant::now();
        for n in 0..count {
            b.add_element(n, Family::Ip, "t", "s", ElementRef { key: &n.to_be_bytes(), key_end: None, interval_end: false, data: DataRef::None, comment: Some("namespace/service-name:port") });
        }
        let enc = t.elapsed();
        let t = Instant::now();
        c.commit(&b).unwrap();
        let com = t.elapsed();
        for round in 0..6 {
            let t = Instant::now();
            let mut seen = HashSet::new();
            let mut total = 0;
            let r = c.elements(Family::Ip, "t", "s", &mut |e| { total += 1; seen.insert(e.key); });
            println!("size {size:?} n {count} encode {enc:?} commit {com:?} round {round}: total {total} distinct {} dump {:?} {r:?}", seen.len(), t.elapsed());
        }
        b.clear(); b.delete_table(0, Family::Ip, "t"); c.commit(&b).unwrap();
    }
}
