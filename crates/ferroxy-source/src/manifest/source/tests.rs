//! What each kind of edit to the files changes. No watching here: `refresh` is called by hand.

use std::fs;
use std::os::unix::fs::symlink;

use super::*;
use crate::manifest::MAX_FILE_BYTES;

/// A directory of manifests, and the source that reads it.
struct Bench {
    dir: tempfile::TempDir,
    source: ManifestSource,
}

impl Bench {
    fn new(files: &[(&str, &str)]) -> (Bench, Vec<String>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
        let (source, events, diagnostics) = open(dir.path());
        let bench = Bench { dir, source };
        let diagnostics = bench.shown(&diagnostics);
        (bench, described(&events), diagnostics)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Events and diagnostics of a look at the files; `None` when it brought nothing.
    fn refresh(&mut self) -> Option<(Vec<String>, Vec<String>)> {
        let batch = self.source.refresh()?;
        Some((described(&batch.events), self.shown(&batch.diagnostics)))
    }

    /// As if the files were old: files that have not changed since are not read again.
    fn trust_stamps(&mut self) {
        self.source.files.values_mut().for_each(|file| file.stamp.settled = true);
    }

    fn shown(&self, diagnostics: &[Diagnostic]) -> Vec<String> {
        let prefix = format!("{}/", self.dir.path().display());
        diagnostics.iter().map(|it| it.to_string().replace(&prefix, "")).collect()
    }
}

fn open(path: &Path) -> (ManifestSource, Vec<Event>, Vec<Diagnostic>) {
    let mut events = Vec::new();
    let (source, diagnostics) = ManifestSource::open(path, |event| events.push(event)).unwrap();
    (source, events, diagnostics)
}

fn described(events: &[Event]) -> Vec<String> {
    let described = |event: &Event| match event {
        Event::Service(it) => format!("{} {}", it.name, it.cluster_ip),
        Event::ServiceGone { name, .. } => format!("{name} gone"),
        Event::Node(it) => format!("node {}", it.name),
        other => panic!("{other:?}"),
    };
    events.iter().map(described).collect()
}

fn service(name: &str, ip: &str) -> String {
    format!("---\n{{kind: Service, apiVersion: v1, metadata: {{name: {name}}}, spec: {{clusterIP: {ip}}}}}\n")
}

fn nothing() -> Vec<String> {
    Vec::new()
}

#[test]
fn events_are_the_difference() {
    let (mut bench, events, diagnostics) =
        Bench::new(&[("a.yaml", &(service("a", "x1") + &service("b", "x2")))]);
    assert_eq!(events, ["a x1", "b x2"]);
    assert_eq!(diagnostics, nothing());
    assert_eq!(bench.refresh(), None);

    bench.write("a.yaml", &(service("c", "x3") + &service("b", "x9")));
    let events = ["a gone", "b x9", "c x3"].map(String::from).to_vec();
    assert_eq!(bench.refresh(), Some((events, nothing())));

    bench.write("a.yaml", &(service("b", "x9") + &service("c", "x3")));
    assert_eq!(bench.refresh(), None, "order is no difference");

    bench.write("b.yaml", "{kind: Node, apiVersion: v1, metadata: {name: ka}}");
    assert_eq!(bench.refresh(), Some((vec!["node ka".into()], nothing())));

    fs::remove_file(bench.path("a.yaml")).unwrap();
    assert_eq!(bench.refresh(), Some((vec!["b gone".into(), "c gone".into()], nothing())));
}

#[test]
fn a_file_renamed_into_place_is_read() {
    let (mut bench, _, _) = Bench::new(&[("a.yaml", &service("a", "x1"))]);
    bench.write(".a.yaml.swp", &service("a", "x2"));
    assert_eq!(bench.refresh(), None, "hidden files are none of ours");
    fs::rename(bench.path(".a.yaml.swp"), bench.path("a.yaml")).unwrap();
    assert_eq!(bench.refresh(), Some((vec!["a x2".into()], nothing())));
}

#[test]
fn an_object_that_moves_to_another_file_is_unchanged() {
    let (mut bench, _, _) = Bench::new(&[("a.yaml", &service("a", "x1"))]);
    fs::rename(bench.path("a.yaml"), bench.path("z.yaml")).unwrap();
    assert_eq!(bench.refresh(), None);
}

#[test]
fn directories_come_and_go() {
    let (mut bench, _, _) = Bench::new(&[]);
    fs::create_dir_all(bench.path("new/deep")).unwrap();
    bench.write("new/deep/a.yaml", &service("a", "x1"));
    assert_eq!(bench.refresh(), Some((vec!["a x1".into()], nothing())));
    fs::remove_dir_all(bench.path("new")).unwrap();
    assert_eq!(bench.refresh(), Some((vec!["a gone".into()], nothing())));
}

#[test]
fn a_configmap_swap_is_one_batch() {
    let (mut bench, _, _) = Bench::new(&[]);
    for (version, ip) in [("..1", "x1"), ("..2", "x2")] {
        fs::create_dir(bench.path(version)).unwrap();
        bench.write(&format!("{version}/a.yaml"), &service("a", ip));
        bench.write(&format!("{version}/b.yaml"), &service("b", ip));
    }
    symlink("..1", bench.path("..data")).unwrap();
    symlink("..data/a.yaml", bench.path("a.yaml")).unwrap();
    symlink("..data/b.yaml", bench.path("b.yaml")).unwrap();
    assert_eq!(bench.refresh(), Some((vec!["a x1".into(), "b x1".into()], nothing())));

    symlink("..2", bench.path("..data_tmp")).unwrap();
    fs::rename(bench.path("..data_tmp"), bench.path("..data")).unwrap();
    assert_eq!(bench.refresh(), Some((vec!["a x2".into(), "b x2".into()], nothing())));
}

#[test]
fn a_broken_file_keeps_what_it_held_until_it_is_fixed() {
    let (mut bench, _, _) = Bench::new(&[("a.yaml", &(service("a", "x1") + &service("b", "x2")))]);
    bench.write("a.yaml", &(service("a", "x9") + "---\nkind: {Serv"));
    let (events, diagnostics) = bench.refresh().unwrap();
    assert_eq!(events, ["a x9"], "what can be read counts, what cannot stays");
    assert_eq!(diagnostics.len(), 2);
    assert!(diagnostics[0].starts_with("File a.yaml: document 2, line "), "{diagnostics:?}");
    let kept = "File a.yaml: contents: not all of the file can be read; \
                objects last read from it and missing now (1) stay in force until it can be read again or is removed";
    assert_eq!(diagnostics[1], kept);

    bench.write("a.yaml", "still: {broken");
    assert_eq!(bench.refresh().unwrap().0, nothing());
    bench.write("a.yaml", &service("a", "x9"));
    assert_eq!(bench.refresh(), Some((vec!["b gone".into()], nothing())));
}

#[test]
fn a_broken_file_that_is_removed_is_gone() {
    let (mut bench, _, _) = Bench::new(&[("a.yaml", &service("a", "x1"))]);
    bench.write("a.yaml", "{");
    assert_eq!(bench.refresh().unwrap().0, nothing());
    fs::remove_file(bench.path("a.yaml")).unwrap();
    assert_eq!(bench.refresh(), Some((vec!["a gone".into()], nothing())));
}

#[test]
fn an_emptied_file_is_taken_for_one_being_written() {
    let (mut bench, _, _) = Bench::new(&[("a.yaml", &service("a", "x1"))]);
    bench.write("a.yaml", "");
    let (events, diagnostics) = bench.refresh().unwrap();
    assert_eq!(events, nothing());
    assert!(diagnostics[0].contains("the file is empty"), "{diagnostics:?}");
    bench.write("a.yaml", &service("a", "x2"));
    assert_eq!(bench.refresh(), Some((vec!["a x2".into()], nothing())));
    bench.write("a.yaml", "# nothing any more\n");
    assert_eq!(bench.refresh(), Some((vec!["a gone".into()], nothing())));
}

#[test]
fn the_first_of_two_with_one_name_counts() {
    let files = [("a.yaml", service("a", "x1")), ("b.yaml", service("a", "x2"))];
    let (mut bench, events, diagnostics) =
        Bench::new(&[(files[0].0, &files[0].1), (files[1].0, &files[1].1)]);
    assert_eq!(events, ["a x1"]);
    let expected = "Service default/a: metadata.name: is already taken by an object in a.yaml; \
                    the one in b.yaml is ignored";
    assert_eq!(diagnostics, [expected]);
    fs::remove_file(bench.path("a.yaml")).unwrap();
    assert_eq!(bench.refresh(), Some((vec!["a x2".into()], nothing())));
}

#[test]
fn a_shadowed_object_is_read_again_when_it_comes_into_force() {
    let both = service("a", "x2") + &service("b", "x3") + &service("c", "x4");
    let (mut bench, events, _) =
        Bench::new(&[("a.yaml", &(service("a", "x1") + &service("b", "x3"))), ("b.yaml", &both)]);
    assert_eq!(events, ["a x1", "b x3", "c x4"]);
    bench.trust_stamps();
    assert_eq!(bench.refresh(), None);
    fs::remove_file(bench.path("a.yaml")).unwrap();
    let events = vec!["a x2".into()];
    assert_eq!(bench.refresh(), Some((events, nothing())), "of equal objects there is nothing to tell");
    assert_eq!(bench.refresh(), None);
}

#[test]
fn a_shadowed_object_that_cannot_be_read_again_replaces_nothing_until_it_can() {
    let (mut bench, _, _) = Bench::new(&[("a.yaml", &service("a", "x1")), ("b.yaml", &service("a", "x2"))]);
    bench.write("b.yaml", "kind: {");
    assert_eq!(bench.refresh().unwrap().0, nothing());
    bench.trust_stamps();
    fs::remove_file(bench.path("a.yaml")).unwrap();
    let (events, diagnostics) = bench.refresh().unwrap();
    assert_eq!(events, nothing());
    let expected = "Service default/a: metadata.name: is now that of the object in b.yaml, which cannot be read; \
                    the previous object stays in force";
    assert_eq!(diagnostics.last().unwrap(), expected);
    assert_eq!(bench.refresh(), None, "it has been said");

    bench.write("b.yaml", &service("a", "x3"));
    assert_eq!(bench.refresh(), Some((vec!["a x3".into()], nothing())));
    bench.write("b.yaml", &service("a", "x1"));
    assert_eq!(bench.refresh(), Some((vec!["a x1".into()], nothing())));
}

#[test]
fn while_the_path_is_away_everything_stays() {
    let (mut bench, _, _) = Bench::new(&[]);
    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/a.yaml", &service("a", "x1"));
    bench.source = open(&bench.path("m")).0;
    fs::rename(bench.path("m"), bench.path("away")).unwrap();
    let (events, diagnostics) = bench.refresh().unwrap();
    assert_eq!(events, nothing());
    assert!(diagnostics[0].ends_with("the objects last read from it (1) stay in force"), "{diagnostics:?}");
    assert_eq!(bench.refresh(), None);

    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/b.yaml", &service("b", "x2"));
    assert_eq!(bench.refresh(), Some((vec!["a gone".into(), "b x2".into()], nothing())));
}

#[test]
fn a_path_taken_away_while_it_is_looked_at_removes_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("manifests");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.yaml"), service("web", "10.96.0.1")).unwrap();
    let (mut source, _, _) = open(&path);
    let before_reading = tree::find(&path).unwrap();
    let mut while_walking = tree::find(&path).unwrap();
    while_walking.files.clear();
    fs::rename(&path, parent.path().join("elsewhere")).unwrap();
    for tree in [while_walking, before_reading] {
        assert_eq!(described(&source.take_in(tree).events), nothing());
        assert_eq!(source.in_force.len(), 1);
    }
}

#[test]
fn what_is_no_text_or_too_large_is_refused() {
    let (mut bench, _, _) = Bench::new(&[("a.yaml", &service("a", "x1"))]);
    fs::write(bench.path("a.yaml"), b"\xff\xfe").unwrap();
    let (events, diagnostics) = bench.refresh().unwrap();
    assert_eq!(events, nothing());
    assert!(diagnostics[0].contains("not UTF-8"), "{diagnostics:?}");

    // Sparse: it has the size, but takes no space.
    fs::File::create(bench.path("a.yaml")).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
    let (events, diagnostics) = bench.refresh().unwrap();
    assert_eq!(events, nothing());
    assert!(diagnostics[0].contains("larger than 64 MiB"), "{diagnostics:?}");
}

#[test]
fn a_path_that_comes_back_unchanged_clears_its_diagnostic() {
    let (mut bench, _, _) = Bench::new(&[]);
    fs::create_dir(bench.path("m")).unwrap();
    bench.write("m/a.yaml", &service("a", "x1"));
    bench.source = open(&bench.path("m")).0;
    fs::rename(bench.path("m"), bench.path("away")).unwrap();
    assert!(bench.refresh().is_some());
    fs::rename(bench.path("away"), bench.path("m")).unwrap();
    assert_eq!(bench.refresh(), Some((nothing(), nothing())));
}

#[test]
fn a_path_that_is_not_there_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let error = ManifestSource::open(dir.path().join("none"), drop).unwrap_err();
    assert!(error.to_string().starts_with("cannot read manifests from "), "{error}");
}

#[test]
fn every_case_of_the_corpus_loads_without_a_word() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/cases");
    let mut count = 0;
    for case in fs::read_dir(cases).unwrap() {
        let path = case.unwrap().path();
        let (_, events, diagnostics) = open(&path);
        assert_eq!(diagnostics, [], "{}", path.display());
        let services = events.iter().filter(|event| matches!(event, Event::Service(_))).count();
        let nodes = events.iter().filter(|event| matches!(event, Event::Node(_))).count();
        assert!(services >= 2 && nodes == 2, "{}: {services} services, {nodes} nodes", path.display());
        count += 1;
    }
    assert!(count >= 30, "only {count} cases");
}
