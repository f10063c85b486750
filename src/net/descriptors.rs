//! How many sockets there may be.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Of the limit, this share (one in so many) and at least [`MIN_RESERVE`] is kept for what is not a probe: the config
/// file, xDS clients, scrapes.
const RESERVE_SHARE: usize = 4;
const MIN_RESERVE: usize = 32;

/// Raises this process's limit of open descriptors as far as it may, and returns how many of them probes may have.
/// Without a share for the rest, many instances would starve the very file and clients they are probed for.
pub fn descriptors_for_probes() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: maximum, maximum };
    let current = if setrlimit(Resource::Nofile, wanted).is_ok() { maximum } else { current };
    let limit = current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    limit.saturating_sub((limit / RESERVE_SHARE).max(MIN_RESERVE)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_never_get_all_descriptors() {
        let limit = || getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
        let probes = descriptors_for_probes();
        assert!(probes >= 1 && probes < limit());
    }
}
