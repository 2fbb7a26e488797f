//! A range of numbers in a word, such as `{1..9}`.

/// Numbers from one to another.
#[derive(Clone, Debug)]
pub(super) struct Range {
    first: u64,
    last: u64,
    /// Shorter ones have zeros before them.
    digits: usize,
}

impl Range {
    /// Reads `1..9`; with `01..12` each has two digits. `None`: it is something else.
    ///
    /// # Errors
    /// It is empty.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some((from, to)) = text.split_once("..") else { return Ok(None) };
        let (Some(first), Some(last)) = (number(from), number(to)) else { return Ok(None) };
        if first > last {
            return Err(format!("{{{text}}}: the range is empty"));
        }
        let is_padded = |text: &str| text.len() > 1 && text.starts_with('0');
        let digits = if is_padded(from) || is_padded(to) { from.len().max(to.len()) } else { 1 };
        Ok(Some(Self { first, last, digits }))
    }

    /// All of them, in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        (self.first..=self.last).map(|number| self.print(number))
    }

    fn print(&self, number: u64) -> String {
        format!("{number:0digits$}", digits = self.digits)
    }

    /// The regular expression for them.
    pub(super) fn expression(&self) -> String {
        let (first, last) = (self.print(self.first), self.print(self.last));
        let parts = (first.len()..=last.len()).map(|digits| {
            let least = if digits == first.len() { first.clone() } else { format!("1{}", "0".repeat(digits - 1)) };
            let most = if digits == last.len() { last.clone() } else { "9".repeat(digits) };
            between(&least, &most)
        });
        format!("(?:{})", parts.collect::<Vec<_>>().join("|"))
    }
}

/// A decimal number. A sign is none of its digits.
fn number(text: &str) -> Option<u64> {
    let is_decimal = text.len() <= MAX_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    is_decimal.then(|| text.parse().ok()).flatten()
}

/// Of a number, with zeros before it.
const MAX_DIGITS: usize = 32;

/// The regular expression for the numbers between two that have as many digits.
fn between(least: &str, most: &str) -> String {
    let (Some(low), Some(high)) = (least.chars().next(), most.chars().next()) else { return String::new() };
    let (least, most) = (least.get(1..).unwrap_or_default(), most.get(1..).unwrap_or_default());
    let any = match least.len() {
        0 => String::new(),
        1 => "[0-9]".to_owned(),
        more => format!("[0-9]{{{more}}}"),
    };
    if low == high {
        return format!("{low}{}", between(least, most));
    }
    let from_low = least.bytes().all(|digit| digit == b'0');
    let to_high = most.bytes().all(|digit| digit == b'9');
    let next = |digit: char, step: i8| char::from((digit as u8).wrapping_add_signed(step));
    let (begin, end) = (if from_low { low } else { next(low, 1) }, if to_high { high } else { next(high, -1) });
    let below = (!from_low).then(|| format!("{low}{}", between(least, &"9".repeat(least.len()))));
    let whole = (begin <= end).then(|| match begin == end {
        true => format!("{begin}{any}"),
        false => format!("[{begin}-{end}]{any}"),
    });
    let above = (!to_high).then(|| format!("{high}{}", between(&"0".repeat(most.len()), most)));
    let parts: Vec<_> = below.into_iter().chain(whole).chain(above).collect();
    match &parts[..] {
        [only] => only.clone(),
        parts => format!("(?:{})", parts.join("|")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    fn matches(range: &str) -> impl Fn(&str) -> bool + use<> {
        let regex = Regex::new(&format!("^(?:{})$", Range::parse(range).unwrap().unwrap().expression())).unwrap();
        move |text| regex.is_match(text)
    }

    #[test]
    fn the_expression_matches_the_range_and_nothing_else() {
        for (first, last) in [(0, 0), (1, 9), (0, 9), (1, 10), (8, 11), (99, 101), (13, 1987), (100, 999), (250, 255)] {
            let matches = matches(&format!("{first}..{last}"));
            for number in 0..2100 {
                assert_eq!(matches(&number.to_string()), (first..=last).contains(&number), "{first}..{last}: {number}");
            }
            assert!(!matches("") && !matches("-1") && !matches(&format!("0{last}")));
        }
        let padded = matches("008..120");
        assert!(padded("008") && padded("099") && padded("120") && !padded("8") && !padded("007") && !padded("121"));
        let all = matches("0..18446744073709551615");
        assert!(all("0") && all("18446744073709551615") && !all("18446744073709551616"));
    }

    proptest! {
        #[test]
        fn so_it_does_whatever_the_range(one in any::<u32>(), other in any::<u32>(), number in any::<u32>(), near in 0..3u32) {
            let (first, last) = (one.min(other), one.max(other));
            let matches = matches(&format!("{first}..{last}"));
            for number in [number, first.saturating_sub(near), first.saturating_add(near), last.saturating_add(near)] {
                prop_assert_eq!(matches(&number.to_string()), (first..=last).contains(&number));
            }
        }
    }
}
