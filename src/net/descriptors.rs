//! Who may have how many descriptors, so that nobody can take what another needs.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Of the limit, this share (one in so many) and at least [`MIN_RESERVE`] is kept for what is not a probe.
const RESERVE_SHARE: usize = 4;
const MIN_RESERVE: usize = 40;
/// Of that, what the process itself has open: the log, the listeners, the runtime, the config file while it is read,
/// and on each port one connection that is about to be refused.
const OWN: usize = 20;
/// Of what is left for connections to our ports, the two that are for people and machines nearby get one in so many
/// each, and xDS clients get the rest.
const NEARBY_SHARE: usize = 8;
const NEARBY_MIN: usize = 4;
const NEARBY_MAX: usize = 256;

/// How many descriptors each of their users may have open at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptors {
    /// Probes, in flight and kept.
    pub probes: usize,
    /// Connections to the xDS port.
    pub xds: usize,
    /// Connections to the admin port.
    pub admin: usize,
    /// Connections to the health port.
    pub health: usize,
}

impl Descriptors {
    /// Raises this process's limit as far as it may, and shares out what there is.
    pub fn raise() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let wanted = Rlimit { current: maximum, maximum };
        let current = if setrlimit(Resource::Nofile, wanted).is_ok() { maximum } else { current };
        Self::of(current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX))
    }

    fn of(limit: usize) -> Self {
        let reserve = (limit / RESERVE_SHARE).max(MIN_RESERVE);
        let connections = reserve - OWN;
        let nearby = (connections / NEARBY_SHARE).clamp(NEARBY_MIN, NEARBY_MAX);
        Self {
            probes: limit.saturating_sub(reserve).max(1),
            xds: connections - 2 * nearby,
            admin: nearby,
            health: nearby,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shares_together_leave_the_process_what_it_needs_itself() {
        for limit in [64, 65, 100, 256, 1024, 4096, 20_000, 1 << 20, usize::MAX] {
            let Descriptors { probes, xds, admin, health } = Descriptors::of(limit);
            assert!(probes + xds + admin + health + OWN <= limit, "{limit}");
            assert!(probes >= 24 && xds >= 12 && admin >= 4 && health >= 4, "{limit}");
        }
        let usual = Descriptors { probes: 15_000, xds: 4_468, admin: 256, health: 256 };
        assert_eq!(Descriptors::of(20_000), usual);
    }

    #[test]
    fn a_limit_that_is_far_too_small_leaves_everybody_something() {
        let Descriptors { probes, xds, admin, health } = Descriptors::of(0);
        assert!([probes, xds, admin, health].into_iter().all(|share| share > 0));
    }
}
