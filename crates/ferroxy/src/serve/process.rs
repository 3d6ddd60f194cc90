//! Figures of this process, under the names that Prometheus' client libraries use.

use std::fmt::Display;

use ferroxy_platform::process::{Figures, figures};

use super::exposition::{Exposition, Kind};

pub fn write(page: &mut Exposition) {
    write_figures(page, &figures());
}

/// Figures that the platform does not have are left out.
fn write_figures(page: &mut Exposition, figures: &Figures) {
    let cpu = "process_cpu_seconds_total";
    write_one(page, Kind::Counter, cpu, "CPU time spent, user and system.", figures.cpu_seconds);
    let mut gauge = |name, help, value: Option<u64>| write_one(page, Kind::Gauge, name, help, value);
    gauge("process_resident_memory_bytes", "Memory in RAM.", figures.resident_bytes);
    gauge("process_virtual_memory_bytes", "Address space.", figures.virtual_bytes);
    let limit = figures.virtual_bytes_limit;
    gauge("process_virtual_memory_max_bytes", "Address space that may be used.", limit);
    let start = "process_start_time_seconds";
    write_one(page, Kind::Gauge, start, "Start, as Unix time.", figures.start_time_seconds);
    let mut gauge = |name, help, value: Option<u64>| write_one(page, Kind::Gauge, name, help, value);
    gauge("process_threads", "Threads.", figures.threads);
    gauge("process_open_fds", "Open file descriptors.", figures.open_files);
    gauge("process_max_fds", "File descriptors that may be open.", figures.open_files_limit);
}

fn write_one(page: &mut Exposition, kind: Kind, name: &str, help: &str, value: Option<impl Display>) {
    if let Some(value) = value {
        page.single(kind, name, help, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_names_of_prometheus_client_libraries() {
        let mut page = Exposition::default();
        write(&mut page);
        let text = page.finish();
        for name in ["process_cpu_seconds_total ", "process_start_time_seconds ", "process_open_fds "] {
            assert!(text.contains(&format!("\n{name}")), "{name} in {text}");
        }
    }

    #[test]
    fn figures_that_the_platform_does_not_have_are_left_out() {
        let mut page = Exposition::default();
        write_figures(&mut page, &Figures { threads: Some(3), ..Figures::default() });
        let text = page.finish();
        assert!(text.contains("\nprocess_threads 3\n"), "{text}");
        assert!(!text.contains("process_open_fds"), "{text}");
    }
}
