//! Numbers with a meaning and a range.

use std::fmt;

/// 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(u8);

impl Percent {
    /// `None` above 100.
    pub const fn new(percent: u8) -> Option<Self> {
        if percent <= 100 { Some(Self(percent)) } else { None }
    }

    /// The number, 0 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// This share of `n`, rounded down: a cap is never exceeded by rounding.
    pub const fn of(self, n: usize) -> usize {
        // Split so that no `n` overflows.
        (n / 100) * self.0 as usize + (n % 100) * self.0 as usize / 100
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

/// A load-balancing weight on base 100: 1 to 10,000. Envoy refuses 0, and gRPC drops the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

impl Weight {
    /// The weight of an ordinary healthy instance.
    pub const BASE: Self = Self(100);
    /// The smallest weight.
    pub const LEAST: Self = Self(1);
    /// The largest weight: sums over 400,000 endpoints still fit Envoy's 32 bits.
    pub const MAX: Self = Self(10_000);

    /// `None` outside 1..=10,000.
    pub const fn new(weight: u32) -> Option<Self> {
        if weight >= 1 && weight <= Self::MAX.0 { Some(Self(weight)) } else { None }
    }

    /// The number, at least 1.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// `percent` of this weight, at least 1.
    pub const fn scaled(self, percent: Percent) -> Self {
        let w = self.0 * percent.get() as u32 / 100;
        Self(if w == 0 { 1 } else { w })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_of_a_count_rounds_down() {
        let half = Percent::new(50).unwrap();
        assert_eq!((1..=5).map(|n| half.of(n)).collect::<Vec<_>>(), [0, 1, 1, 2, 2]);
        assert_eq!(Percent::new(100).unwrap().of(usize::MAX), usize::MAX);
        assert_eq!(Percent::new(101), None);
    }

    #[test]
    fn a_weight_is_never_zero() {
        assert_eq!(Weight::new(0), None);
        assert_eq!(Weight::new(10_001), None);
        assert_eq!(Weight::new(1).unwrap().scaled(Percent::new(25).unwrap()).get(), 1);
        assert_eq!(Weight::BASE.scaled(Percent::new(25).unwrap()).get(), 25);
    }
}
