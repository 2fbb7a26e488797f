//! A line as of `ls -l`, which some clients show as it is.

use std::time::SystemTime;

use rustix::fs::{FileType, Stat};
use time::{Duration, OffsetDateTime};

use crate::names::Names;

const HALF_A_YEAR: Duration = Duration::seconds(365 * 24 * 60 * 60 / 2);

/// With times in UTC.
pub(crate) fn long_name(name: &[u8], stat: &Stat, names: &mut Names) -> Vec<u8> {
    let mut line = format!(
        "{} {:>3} {:<8} {:<8} {:>8} {} ",
        permissions(stat.st_mode),
        stat.st_nlink,
        names.user(stat.st_uid),
        names.group(stat.st_gid),
        stat.st_size,
        date(stat.st_mtime, SystemTime::now().into()),
    )
    .into_bytes();
    line.extend_from_slice(name);
    line
}

/// Such as `drwxr-sr-t`.
fn permissions(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        _ => '-',
    };
    let has = |bit: u32, letter: char| if mode & bit != 0 { letter } else { '-' };
    let execute = |bit: u32, special: u32, letter: char| match (mode & bit != 0, mode & special != 0) {
        (true, true) => letter,
        (false, true) => letter.to_ascii_uppercase(),
        _ => has(bit, 'x'),
    };
    [
        kind,
        has(0o400, 'r'),
        has(0o200, 'w'),
        execute(0o100, 0o4000, 's'),
        has(0o040, 'r'),
        has(0o020, 'w'),
        execute(0o010, 0o2000, 's'),
        has(0o004, 'r'),
        has(0o002, 'w'),
        execute(0o001, 0o1000, 't'),
    ]
    .iter()
    .collect()
}

/// With the time of day, or the year if that is not of the last six months.
fn date(seconds: i64, now: OffsetDateTime) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let Ok(time) = OffsetDateTime::from_unix_timestamp(seconds) else { return seconds.to_string() };
    let month = MONTHS.get(usize::from(u8::from(time.month())) - 1).copied().unwrap_or_default();
    match time <= now && now - time < HALF_A_YEAR {
        true => format!("{month} {:>2} {:02}:{:02}", time.day(), time.hour(), time.minute()),
        false => format!("{month} {:>2}  {:>4}", time.day(), time.year()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_in_a_listing() {
        for (mode, expected) in [
            (0o100644, "-rw-r--r--"),
            (0o040755, "drwxr-xr-x"),
            (0o106711, "-rws--s--x"),
            (0o041777, "drwxrwxrwt"),
            (0o107000, "---S--S--T"),
            (0o120777, "lrwxrwxrwx"),
        ] {
            assert_eq!(permissions(mode), expected);
        }
        let now = OffsetDateTime::from_unix_timestamp(1_700_000_000).unwrap();
        assert_eq!(date(1_699_999_999, now), "Nov 14 22:13");
        assert_eq!(date(1_600_000_000, now), "Sep 13  2020");
        assert_eq!(date(1_700_000_001, now), "Nov 14  2023");
        assert_eq!(date(i64::MAX, now), i64::MAX.to_string());
    }
}
