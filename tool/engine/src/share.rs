//! What part of the machine an identity gets, relative to others.

use std::fmt;

/// A weight: of identities that want more than there is, one with a share of 3 gets three times what one with a share of 1 gets. From
/// 0.01 to 100; the default is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// As `cpu.weight` of cgroups(7), of which the default is 100 too.
    hundredths: u16,
}

impl Share {
    const MIN: u16 = 1;
    const MAX: u16 = 10_000;

    /// As a number with at most two decimals; `None`: it is not from 0.01 to 100.
    pub fn parse(text: &str) -> Option<Self> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
            return None;
        }
        let whole: u16 = whole.parse().ok()?;
        let decimals: u16 = format!("{decimals:0<2}").parse().ok()?;
        let hundredths = whole.checked_mul(100)?.checked_add(decimals)?;
        (Self::MIN..=Self::MAX).contains(&hundredths).then_some(Self { hundredths })
    }

    /// In hundredths, from 1 to 10,000.
    pub fn hundredths(self) -> u16 {
        self.hundredths
    }
}

impl Default for Share {
    fn default() -> Self {
        Self { hundredths: 100 }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.hundredths) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_numbers_with_two_decimals() {
        for (text, hundredths) in
            [("1", 100), ("0.01", 1), ("100", 10_000), ("2.5", 250), ("0.25", 25), ("100.0", 10_000)]
        {
            let share = Share::parse(text).unwrap();
            assert_eq!(share.hundredths(), hundredths, "{text}");
            assert_eq!(Share::parse(&share.to_string()), Some(share), "{text}");
        }
        for text in ["", "0", "0.001", "100.01", "101", "700", "-1", "+1", "1.", ".5", "1,5", "1e1", " 1", "NaN", "٣"]
        {
            assert_eq!(Share::parse(text), None, "{text}");
        }
        assert_eq!(Share::parse("1"), Some(Share::default()));
    }
}
