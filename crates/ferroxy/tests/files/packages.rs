//! The packages and the SBOM, made from the debug binary with the scripts of `make packages`: their contents and scripts, that a second
//! build is identical, and that the checker finds mistakes. The release binary: `make packages-check`, `make reproducible`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::repository::{documents, output, path, run, text, tool};
use crate::support::{Done, FERROXY};

/// The packages of the debug binary, in their own directory.
struct Packages {
    directory: TempDir,
}

impl Packages {
    fn build() -> Option<Packages> {
        for needed in ["dpkg-deb", "rpmbuild", "python3", "strip"] {
            tool(needed)?;
        }
        let packages = Packages { directory: tempfile::tempdir().unwrap() };
        output(Command::new("strip").arg("-o").arg(packages.path("ferroxy")).arg(FERROXY), "");
        packages.pack(&packages.path("ferroxy"), &packages.path(""));
        Some(packages)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn pack(&self, binary: &Path, into: &Path) {
        let mut script = Command::new(path("scripts/deb-and-rpm"));
        script.arg(binary).arg(architecture()).arg(into);
        output(script.env("SOURCE_DATE_EPOCH", "1700000000").env("COMPRESSION", "none"), "");
    }

    fn deb(&self) -> PathBuf {
        let architecture = if architecture() == "x86_64" { "amd64" } else { "arm64" };
        self.path(&format!("ferroxy_{}_{architecture}.deb", env!("CARGO_PKG_VERSION")))
    }

    fn rpm(&self) -> PathBuf {
        self.path(&format!("ferroxy-{}-1.{}.rpm", env!("CARGO_PKG_VERSION"), architecture()))
    }
}

fn architecture() -> &'static str {
    std::env::consts::ARCH
}

fn check(package: &Path) -> Done {
    run(Command::new(path("scripts/check-packages")).arg(package).env("ANY_BINARY", "yes"), "")
}

/// One test for all, because making packages takes seconds.
#[test]
fn packages_are_complete_and_the_same_when_made_again() {
    let Some(packages) = Packages::build() else { return };
    for package in [packages.deb(), packages.rpm()] {
        let done = check(&package);
        assert!(done.code == 0 && done.stdout.contains("files as expected"), "{done:?}");
    }
    fs::create_dir(packages.path("again")).unwrap();
    packages.pack(&packages.path("ferroxy"), &packages.path("again"));
    for package in [packages.deb(), packages.rpm()] {
        let again = packages.path("again").join(package.file_name().unwrap());
        assert!(fs::read(&package).unwrap() == fs::read(&again).unwrap(), "{} differs", package.display());
    }
    the_sbom_is_inside(&packages);
    the_checker_finds_what_is_wrong(&packages);
}

fn the_sbom_is_inside(packages: &Packages) {
    let root = packages.path("root");
    output(Command::new("dpkg-deb").arg("--extract").arg(packages.deb()).arg(&root), "");
    let sbom = fs::read_to_string(root.join("usr/share/doc/ferroxy/ferroxy.cdx.json")).unwrap();
    let sbom: Value = serde_json::from_str(&sbom).unwrap();
    let sum = output(Command::new("sha256sum").arg(root.join("usr/bin/ferroxy")), "");
    assert_eq!(sbom["metadata"]["component"]["hashes"][0]["content"], sum.split(' ').next().unwrap());
    assert_eq!(sbom["metadata"]["timestamp"], "2023-11-14T22:13:20Z");
    let licences = fs::read_to_string(root.join("usr/share/doc/ferroxy/THIRD-PARTY-LICENSES")).unwrap();
    assert!(licences.contains("\ntokio ") && licences.contains("Permission is hereby granted"));
}

/// Packages with one thing wrong each.
fn the_checker_finds_what_is_wrong(packages: &Packages) {
    type Spoil = fn(&Path);
    let spoilt: [(Spoil, &str); 5] = [
        (|root| fs::remove_file(root.join("usr/bin/kubectl-ferroxy")).unwrap(), "does not run"),
        (|root| fs::write(root.join("usr/bin/other"), "").unwrap(), "> -rw-r--r-- root/root /usr/bin/other"),
        (|root| fs::write(root.join("etc/ferroxy/config.yaml"), "mode: fast\n").unwrap(), "configuration"),
        (|root| fs::write(root.join("DEBIAN/conffiles"), "").unwrap(), "no conffile"),
        (
            |root| {
                let unit = root.join("usr/lib/systemd/system/ferroxy.service");
                fs::write(&unit, fs::read_to_string(&unit).unwrap().replace("Type=notify", "Type=magic"))
                    .unwrap();
            },
            "systemd does not accept the unit",
        ),
    ];
    for (index, (spoil, said)) in spoilt.into_iter().enumerate() {
        let (root, package) =
            (packages.path(&format!("wrong-{index}")), packages.path(&format!("{index}.deb")));
        output(Command::new("dpkg-deb").arg("--raw-extract").arg(packages.deb()).arg(&root), "");
        spoil(&root);
        let mut build = Command::new("dpkg-deb");
        build.args(["--root-owner-group", "-Znone", "--build"]).arg(&root).arg(&package);
        output(&mut build, "");
        let done = check(&package);
        assert!(done.code == 1 && (done.stdout + &done.stderr).contains(said), "{said}");
    }
}

/// The SBOM has the crates that `cargo tree` lists, with the checksums of the lock file.
#[test]
fn the_sbom_has_every_crate_of_the_release() {
    let Some(mut python) = tool("python3") else { return };
    let sbom = output(python.arg(path("scripts/sbom")).arg(architecture()), "");
    let sbom: Value = serde_json::from_str(&sbom).unwrap();
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = sbom["components"].as_array().unwrap();
    let lock = text("Cargo.lock");
    for component in components {
        let field = |name: &str| component[name].as_str().unwrap_or_else(|| panic!("{name}: {component}"));
        let (name, version) = (field("name"), field("version"));
        assert_eq!(field("purl"), format!("pkg:cargo/{name}@{version}"));
        assert!(component["licenses"][0]["expression"].is_string(), "{component}");
        let checksum = component["hashes"][0]["content"].as_str();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"\n");
        let (_, entry) = lock.split_once(&entry).unwrap_or_else(|| panic!("{name} {version}"));
        let locked =
            entry.split("\n\n").next().unwrap().lines().find_map(|it| it.strip_prefix("checksum = "));
        assert_eq!(checksum, locked.map(|it| it.trim_matches('"')), "{name}");
        assert_eq!(checksum.is_none(), name.starts_with("ferroxy"), "{name}");
    }
    let names: BTreeSet<&str> = components.iter().filter_map(|it| it["name"].as_str()).collect();
    let scope = |name: &str| components.iter().find(|it| it["name"] == name).map(|it| it["scope"].clone());
    assert_eq!(scope("tokio"), Some("required".into()));
    assert_eq!(scope("clap_derive"), Some("excluded".into()), "it runs in the compiler");
    assert!(!names.contains("ferroxy-lab") && !names.contains("proptest"), "tests are not part of a release");

    let known: BTreeSet<&str> = components.iter().filter_map(|it| it["bom-ref"].as_str()).collect();
    for dependency in sbom["dependencies"].as_array().unwrap() {
        let on = dependency["dependsOn"].as_array().unwrap();
        assert!(on.iter().all(|it| known.contains(it.as_str().unwrap())), "{dependency}");
    }
}

#[test]
fn the_packaged_configuration_is_that_of_the_unit() {
    let config = documents(&text("deploy/packages/config.yaml")).remove(0);
    assert_eq!(config["clientConnection"]["kubeconfig"], "/etc/ferroxy/kubeconfig");
    let unit = text("deploy/systemd/ferroxy.service");
    let score = unit.lines().find_map(|it| it.strip_prefix("OOMScoreAdjust=")).unwrap();
    assert_eq!(config["oomScoreAdj"].to_string(), score);
    let files = tempfile::tempdir().unwrap();
    let written = files.path().join("written");
    let mut ferroxy = Command::new(FERROXY);
    ferroxy.arg("run").arg("--config").arg(path("deploy/packages/config.yaml"));
    output(ferroxy.arg("--hostname-override=node").arg("--write-config-to").arg(&written), "");
    assert_eq!(documents(&fs::read_to_string(written).unwrap())[0]["mode"], "nftables");
}

/// Both packages list the same commands.
#[test]
fn the_scripts_of_both_packages_do_the_same() {
    let commands = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim);
        let ours = lines.filter(|it| it.starts_with("systemctl") || it.starts_with("systemd-"));
        ours.map(|it| it.replace("${DPKG_ROOT:+--root=\"$DPKG_ROOT\"} ", "")).collect()
    };
    let debian: Vec<String> = ["postinst", "prerm", "postrm"]
        .into_iter()
        .flat_map(|script| commands(&text(&format!("deploy/packages/{script}"))))
        .collect();
    assert_eq!(debian, commands(&text("deploy/packages/ferroxy.spec")));
    assert!(debian.iter().all(|it| !it.contains(" enable") && !it.contains(" start")), "{debian:?}");
}
