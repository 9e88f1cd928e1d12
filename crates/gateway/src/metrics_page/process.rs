//! Metrics of this process from the kernel. It reads `/proc` and nothing else; what cannot be read
//! is left out.

use std::fs;

/// The unit of processor time in `/proc`: `USER_HZ`, which is 100 on every architecture that we
/// build for.
const TICKS_PER_SECOND: f64 = 100.0;

/// One look at the process.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Process {
    pub(super) cpu_seconds: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) virtual_bytes: Option<u64>,
    pub(super) threads: Option<u64>,
    pub(super) open_files: Option<u64>,
    pub(super) max_files: Option<u64>,
    pub(super) started_at: Option<f64>,
}

impl Process {
    pub(super) fn read() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let files = fs::read_dir("/proc/self/fd").map(|files| files.count() as u64);
        let seen = Self::parse(
            &read("/proc/self/stat"),
            &read("/proc/self/status"),
            &read("/proc/self/limits"),
            &read("/proc/stat"),
        );
        Self {
            // The list has itself open while it is read.
            open_files: files.ok().map(|count| count.saturating_sub(1)),
            ..seen
        }
    }

    fn parse(stat: &str, status: &str, limits: &str, system: &str) -> Self {
        // The name of the program stands in brackets and may hold anything; the numbers follow the
        // last of them.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
        let boot = system
            .lines()
            .find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let max_files = limits.lines().find_map(|line| {
            let soft = line.strip_prefix("Max open files")?.split_whitespace().next()?;
            soft.parse().ok()
        });
        Self {
            cpu_seconds: ticks(11)
                .zip(ticks(12))
                .map(|(user, system)| (user + system) / TICKS_PER_SECOND),
            resident_bytes: number("VmRSS:").map(|kib| kib * 1024),
            virtual_bytes: number("VmSize:").map(|kib| kib * 1024),
            threads: number("Threads:"),
            open_files: None,
            max_files,
            started_at: ticks(19)
                .zip(boot)
                .map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_understood() {
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 1000 9 9";
        let status = "Name:\tx\nVmSize:\t  20 kB\nVmRSS:\t 10 kB\nThreads:\t3\n";
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024      4096      files\n";
        let seen = Process::parse(stat, status, limits, "cpu 1\nbtime 1700000000\n");
        let expected = Process {
            cpu_seconds: Some(2.0),
            resident_bytes: Some(10 << 10),
            virtual_bytes: Some(20 << 10),
            threads: Some(3),
            open_files: None,
            max_files: Some(1024),
            started_at: Some(1_700_000_010.0),
        };
        assert_eq!(seen, expected);
    }

    #[test]
    fn missing_values_are_left_out() {
        assert_eq!(Process::parse("", "", "", ""), Process::default());
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let seen = Process::read();
        assert!(seen.resident_bytes.is_some_and(|bytes| bytes > 0));
        assert!(seen.open_files.is_some_and(|files| files > 0));
        assert!(seen.cpu_seconds.is_some() && seen.started_at.is_some());
    }
}
