//! CPU and memory use of this host, relative to the amount available to this process. In a container, this amount may
//! be less than the host has.

use std::path::{Path, PathBuf};

use sysinfo::{MemoryRefreshKind, System};

use super::HostLoad;
use crate::{Clock, Micros, SystemClock};

/// Measures this host. The CPU share covers the time since the previous measurement.
pub struct Host {
    system: System,
    clock: SystemClock,
    cgroup: Option<Cgroup>,
    before: Option<(Micros, u64)>,
}

/// Directory in which the kernel publishes the CPU limits of a container.
#[derive(Debug)]
struct Cgroup {
    folder: PathBuf,
}

impl Host {
    /// Creates a meter. The CPU share is unknown until the second measurement.
    #[allow(clippy::new_without_default, reason = "it looks at the host")]
    pub fn new() -> Self {
        Host { system: System::new(), clock: SystemClock::new(), cgroup: Cgroup::own(), before: None }
    }

    /// Measures the present load.
    pub fn load(&mut self) -> HostLoad {
        HostLoad { cpu: self.cpu(), memory: self.memory() }
    }

    fn cpu(&mut self) -> Option<u32> {
        if let Some(cgroup) = &self.cgroup
            && let (Some(cores), Some(used)) = (cgroup.cores(), cgroup.used())
        {
            let now = self.clock.now();
            let (then, before) = self.before.replace((now, used))?;
            let may = now.since(then).get() as f64 * cores;
            return share(used.saturating_sub(before) as f64, may);
        }
        let first = self.before.replace((Micros::ZERO, 0)).is_none();
        self.system.refresh_cpu_usage();
        if first { None } else { share(self.system.global_cpu_usage().into(), 100.0) }
    }

    fn memory(&mut self) -> Option<u32> {
        self.system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let total = self.system.total_memory();
        // In a container without a memory limit, the memory of the host applies.
        match self.system.cgroup_limits() {
            Some(limits) if limits.total_memory < total => share(
                limits.total_memory.saturating_sub(limits.free_memory) as f64,
                limits.total_memory as f64,
            ),
            _ => share(total.saturating_sub(self.system.available_memory()) as f64, total as f64),
        }
    }
}

/// Returns a share in hundredths of a percent.
fn share(part: f64, whole: f64) -> Option<u32> {
    let share = part / whole * 10_000.0;
    share.is_finite().then(|| share.clamp(0.0, 10_000.0).round() as u32)
}

impl Cgroup {
    /// Finds the control group that limits the CPUs of this process, if there is one.
    fn own() -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let lines = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = lines.lines().find_map(|line| line.strip_prefix("0::"))?;
        let own = root.join(path.trim_start_matches('/'));
        // Find the nearest group with a limit, from the group of this process up to the root. Inside a container, the
        // root is the group of the container.
        let bounded = own.ancestors().take_while(|folder| folder.starts_with(root));
        bounded.map(|folder| Cgroup { folder: folder.to_owned() }).find(|cgroup| cgroup.cores().is_some())
    }

    /// Returns the number of CPUs available: quota divided by period in `cpu.max`; `None` if there is no limit.
    fn cores(&self) -> Option<f64> {
        let text = std::fs::read_to_string(self.folder.join("cpu.max")).ok()?;
        let (quota, period) = text.trim().split_once(' ')?;
        let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    }

    /// Returns the CPU time used, in microseconds.
    fn used(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.join("cpu.stat")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{Cgroup, Host};

    #[test]
    fn measures_this_host() {
        let mut host = Host::new();
        let first = host.load();
        assert_eq!(first.cpu, None, "since when?");
        assert!(first.memory.is_some_and(|share| share > 0 && share < 10_000), "{first:?}");
        assert!(host.load().cpu.is_some());
    }

    #[test]
    fn reads_the_cpu_quota_of_a_container() {
        let folder = tempfile::tempdir().unwrap();
        let cgroup = Cgroup { folder: folder.path().to_owned() };
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        assert_eq!((cgroup.cores(), cgroup.used()), (None, None));
        write("cpu.max", "max 100000\n");
        assert_eq!(cgroup.cores(), None);
        write("cpu.max", "150000 100000\n");
        write("cpu.stat", "usage_usec 123456\nuser_usec 100000\n");
        assert_eq!((cgroup.cores(), cgroup.used()), (Some(1.5), Some(123_456)));
        write("cpu.max", "nonsense");
        assert_eq!(cgroup.cores(), None);
    }
}
