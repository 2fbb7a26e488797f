//! What a target's machine is made of, and what is in use.

use std::time::SystemTime;

use serde_json::{Value, json};
use telexec_client::Resuming;
use telexec_executor::Command;

use crate::failure::Failure;
use crate::sandbox::capture;
use crate::times::rfc3339;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) processors: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
}

const SCRIPT: &str = "grep '^cpu' /proc/stat; sleep 0.1; echo then; grep '^cpu ' /proc/stat; grep -E '^(MemTotal|MemAvailable|Cached):' /proc/meminfo; df -Pk . | tail -n 1 | sed 's/^/disk /'";

#[derive(Debug, Default, PartialEq)]
struct Sample {
    machine: Machine,
    cpu_used_percent: f64,
    memory_available: u64,
    cached: u64,
    disk_used: u64,
}

pub(crate) async fn machine(executor: &Resuming) -> Result<Machine, Failure> {
    Ok(sample(executor).await?.machine)
}

/// One sample, as the control plane has it; all of the machine, not of the sandbox's processes alone.
pub(crate) async fn metric(executor: &Resuming) -> Result<Value, Failure> {
    let sample = sample(executor).await?;
    let now = SystemTime::now();
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    Ok(json!({
        "timestamp": rfc3339(now),
        "timestampUnix": seconds,
        "cpuCount": sample.machine.processors,
        "cpuUsedPct": sample.cpu_used_percent,
        "memTotal": sample.machine.memory_bytes,
        "memUsed": sample.machine.memory_bytes.saturating_sub(sample.memory_available),
        "memCache": sample.cached,
        "diskTotal": sample.machine.disk_bytes,
        "diskUsed": sample.disk_used,
    }))
}

async fn sample(executor: &Resuming) -> Result<Sample, Failure> {
    let output = capture(executor, Command::argv(["/bin/sh", "-c", SCRIPT]), None).await?;
    Ok(read(&String::from_utf8_lossy(&output)))
}

/// What is missing is 0.
fn read(text: &str) -> Sample {
    let mut sample = Sample::default();
    let mut times = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        match words.first() {
            Some(&"cpu") => times.push((number(4) + number(5), (1..=8).map(number).sum::<u64>())),
            Some(word) if word.starts_with("cpu") => sample.machine.processors += 1,
            Some(&"MemTotal:") => sample.machine.memory_bytes = number(1).saturating_mul(1024),
            Some(&"MemAvailable:") => sample.memory_available = number(1).saturating_mul(1024),
            Some(&"Cached:") => sample.cached = number(1).saturating_mul(1024),
            Some(&"disk") => {
                sample.machine.disk_bytes = number(2).saturating_mul(1024);
                sample.disk_used = number(3).saturating_mul(1024);
            }
            _ => {}
        }
    }
    if let [(idle_before, all_before), (idle, all)] = times[..] {
        let (idle, all) = (idle.saturating_sub(idle_before), all.saturating_sub(all_before));
        sample.cpu_used_percent = 100.0 * all.saturating_sub(idle) as f64 / all.max(1) as f64;
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_reads_what_the_kernel_says() {
        let text = "cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1 2\ncpu1 1 2\nthen\ncpu  60 0 10 110 20 0 0 0 0 0\n\
                    MemTotal: 8 kB\nMemAvailable: 4 kB\nCached: 2 kB\ndisk /dev/x 100 50 50 50% /\n";
        let machine = Machine { processors: 2, memory_bytes: 8192, disk_bytes: 102_400 };
        let expected =
            Sample { machine, cpu_used_percent: 50.0, memory_available: 4096, cached: 2048, disk_used: 51_200 };
        assert_eq!(read(text), expected);
        assert_eq!(read("nonsense\ncpu\n\n"), Sample::default());
    }
}
