//! What a process costs, as the kernel counts it: processor time and memory.

use std::fs;
use std::time::Duration;

use anyhow::{Context, bail};

/// User and system time of a process and all its threads, without its children. To the nanosecond:
/// the ticks of `/proc/PID/stat` are a hundredth of a second, which is too coarse for short turns.
/// Threads that have ended do not count.
pub fn cpu(pid: u32) -> anyhow::Result<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("the process has ended")?;
    let mut nanos = 0;
    for thread in threads {
        let schedule = thread
            .context("its threads cannot be listed")?
            .path()
            .join("schedstat");
        // A thread may end while it is looked at.
        let Ok(text) = fs::read_to_string(schedule) else {
            continue;
        };
        let Some(Ok(time)) = text.split_ascii_whitespace().next().map(str::parse::<u64>) else {
            bail!("/proc/{pid}/task/*/schedstat cannot be read");
        };
        nanos += time;
    }
    Ok(Duration::from_nanos(nanos))
}

/// Memory in bytes, with shared pages divided among the processes that share them.
pub fn proportional_memory(pid: u32) -> anyhow::Result<u64> {
    kilobytes(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

/// Resident memory in bytes.
pub fn resident_memory(pid: u32) -> anyhow::Result<u64> {
    kilobytes(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// The most resident memory since the last [`reset_peak`], in bytes.
pub fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    kilobytes(&format!("/proc/{pid}/status"), "VmHWM:")
}

pub fn reset_peak(pid: u32) -> anyhow::Result<()> {
    // proc(5): 5 resets the peak resident set size to the current one.
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("the peak cannot be reset")
}

fn kilobytes(file: &str, field: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("{file} cannot be read"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let number: u64 = number
        .and_then(|number| number.trim().parse().ok())
        .with_context(|| format!("{file} has no {field}"))?;
    Ok(number << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let pid = std::process::id();
        cpu(pid).expect("there is a count");
        assert!(proportional_memory(pid).expect("there is a count") > 0);
        reset_peak(pid).expect("one's own peak can be reset");
        assert!(peak_memory(pid).expect("a peak") > 0 && resident_memory(pid).expect("a size") > 0);
    }
}
