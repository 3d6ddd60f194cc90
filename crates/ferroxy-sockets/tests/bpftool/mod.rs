//! What we read of maps, programs, links and cgroups is what bpftool reads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use ferroxy_bpf::kernel::{Attach, Cgroup, Link, Map, Pinned, Program};
use serde_json::Value;

use super::generation;
use super::node::{Node, intent, peer, service};

/// The output of bpftool; `None` if it is not installed.
fn bpftool(arguments: &[&str]) -> Option<Value> {
    let program = ["bpftool", "/usr/sbin/bpftool"].into_iter().find_map(|name| {
        let done = Command::new(name).arg("--json").args(arguments).output().ok()?;
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        Some(done.stdout)
    });
    if program.is_none() {
        ferroxy_lab::capability::skip("bpftool is not installed");
    }
    Some(serde_json::from_slice(&program?).unwrap())
}

/// `["0x0a", …]`
fn bytes(value: &Value) -> Vec<u8> {
    let byte = |it: &Value| u8::from_str_radix(it.as_str().unwrap().trim_start_matches("0x"), 16).unwrap();
    value.as_array().unwrap().iter().map(byte).collect()
}

fn read(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    let map = Map::open_pinned(path).unwrap();
    map.for_each(|key, value| _ = found.insert(key.to_vec(), value.to_vec())).unwrap();
    found
}

#[test]
fn bpftool_reads_the_same() {
    if bpftool(&["version"]).is_none() {
        return;
    }
    let Some(node) = Node::new() else { return };
    let mut sticky = service(3, 1..4);
    std::sync::Arc::make_mut(&mut sticky.1).ports[0].affinity = Some(60);
    let all = intent([service(1, 1..4), service(2, 1..20), sticky]);
    let _dataplane = node.start(&all, node.options());
    peer(&node.pod, "10.96.0.3:80");
    let (pins, generation) = (node.pins(), generation(&node.pins()));

    for (map, elements) in [("frontends", 3), ("endpoints", 22), ("members", 3), ("sessions", 1)] {
        let path = generation.join(map);
        let dump = bpftool(&["map", "dump", "pinned", path.to_str().unwrap()]).unwrap();
        let theirs: BTreeMap<_, _> =
            dump.as_array().unwrap().iter().map(|it| (bytes(&it["key"]), bytes(&it["value"]))).collect();
        assert_eq!(read(&path), theirs, "{map}");
        assert_eq!(theirs.len(), elements, "{map}");
    }
    let mut attached = BTreeSet::new();
    for hook in ["connect4-pods", "connect6-pods", "connect4-host", "connect6-host"] {
        let (program, link) = (generation.join(hook), pins.join(format!("link-{hook}")));
        let ours = Program::open_pinned(&program).unwrap().info().unwrap();
        let theirs = bpftool(&["prog", "show", "pinned", program.to_str().unwrap()]).unwrap();
        let tag: String = ours.tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((&theirs["id"], &theirs["tag"]), (&Value::from(ours.id), &Value::from(tag)), "{hook}");
        assert_eq!(theirs["type"], "cgroup_sock_addr");
        let theirs = bpftool(&["link", "show", "pinned", link.to_str().unwrap()]).unwrap();
        let link = Link::open_pinned(&link).unwrap().info().unwrap();
        assert_eq!((&theirs["prog_id"], &theirs["cgroup_id"]), (&link.program.into(), &link.cgroup.into()));
        assert_eq!(link.program, ours.id);
        attached.insert(ours.id);
    }
    let pods = node.cgroups.root().join("node/kubepods");
    let theirs = bpftool(&["cgroup", "show", pods.to_str().unwrap(), "effective"]).unwrap();
    let theirs: BTreeSet<u32> =
        theirs.as_array().unwrap().iter().map(|it| it["id"].as_u64().unwrap() as u32).collect();
    let cgroup = Cgroup::open(&pods).unwrap();
    let effective = |attach| cgroup.effective(attach).unwrap();
    let ours: BTreeSet<u32> = [Attach::Connect4, Attach::Connect6].into_iter().flat_map(effective).collect();
    assert_eq!(ours, theirs);
    // Other tests may have attached programs above.
    assert!(attached.is_subset(&ours), "{attached:?} in {ours:?}");
}
