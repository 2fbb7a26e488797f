//! The log as a file: what is written is verified, what is changed is named, writing continues after what is torn.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::chain::{Fault, MAX_LINE};
use super::config::AuditConfig;
use super::log::Log;
use super::record::{Body, Record};
use super::verify::{Summary, Verifier, VerifyError};
use super::{files, verify_files};

mod hanging;

struct TestLog(TempDir);

impl TestLog {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("audit.log")
    }

    fn open(&self, max_bytes: u64, keep: usize) -> Log {
        Log::open(self.path(), &AuditConfig { max_bytes, keep, ..AuditConfig::default() }).unwrap().0
    }

    /// A log of so many records, in one file.
    fn with(records: u64) -> Self {
        let test_log = Self::new();
        let mut log = test_log.open(0, 0);
        for _ in 0..records {
            append(&mut log);
        }
        test_log
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(self.path()).unwrap()
    }

    /// What `telexecd audit verify` says.
    fn verify(&self) -> (u8, String) {
        let mut out = Vec::new();
        let code = verify_files(&[self.path()], None, None, &mut out).unwrap();
        (code, String::from_utf8(out).unwrap())
    }

    fn set_aside(&self) -> Vec<Vec<u8>> {
        let entries = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_aside = |path: &PathBuf| path.to_str().unwrap().contains("audit.log.aside.");
        entries.filter(is_aside).map(|path| fs::read(path).unwrap()).collect()
    }
}

fn append_many(log: &mut Log, count: u64) {
    for _ in 0..count {
        append(log);
    }
}

fn append(log: &mut Log) -> u64 {
    let record = Record::new(Body::Opened { version: "1", pid: 1, containment: "none" });
    log.append(|seq, prev| record.text(seq, prev, "host", 0)).unwrap()
}

fn verify(bytes: &[u8]) -> Result<Summary, VerifyError> {
    let mut verifier = Verifier::new();
    verifier.read(bytes)?;
    Ok(verifier.finish())
}

/// The line that is named, and why.
fn broken(bytes: &[u8]) -> (u64, Option<u64>, Fault) {
    match verify(bytes).expect_err("it is broken") {
        VerifyError::Broken { line, seq, fault } => (line, seq, fault),
        VerifyError::Read(error) => panic!("{error}"),
    }
}

fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

#[test]
fn a_log_is_whole_also_over_restarts() {
    let test_log = TestLog::new();
    for restart in 0..3 {
        let mut log = test_log.open(0, 0);
        assert_eq!([append(&mut log), append(&mut log)], [restart * 2 + 1, restart * 2 + 2]);
    }
    let summary = verify(&test_log.bytes()).unwrap();
    let ends = (summary.records, summary.first.unwrap().seq, summary.last.unwrap().seq);
    assert_eq!(ends, (6, 1, 6));
    assert!(test_log.bytes().ends_with(format!("{}\"}}\n", summary.hash).as_bytes()));
    assert_eq!(verify(b"").unwrap(), Summary::default());
}

#[test]
fn every_edited_byte_is_named() {
    let test_log = TestLog::with(4);
    let bytes = test_log.bytes();
    let mut line = 1;
    for at in 0..bytes.len() {
        for by in [bytes[at] ^ 1, bytes[at] ^ 0x20, 0, b'\n', 0xff] {
            let mut edited = bytes.clone();
            edited[at] = by;
            if by != bytes[at] {
                assert_eq!(broken(&edited).0, line, "byte {at} of {} became {by}", bytes.len());
            }
        }
        line += u64::from(bytes[at] == b'\n');
    }
}

#[test]
fn a_line_that_was_changed_with_its_hash_is_found_by_the_next() {
    let bytes = TestLog::with(4).bytes();
    let mut lines: Vec<Vec<u8>> = lines(&bytes).into_iter().map(<[u8]>::to_vec).collect();
    let text = String::from_utf8(lines[1].clone()).unwrap().replace("\"host\"", "\"best\"");
    let mut forged = text.split(",\"hash\"").next().unwrap().as_bytes().to_vec();
    forged.push(b'}');
    super::chain::seal(&mut forged);
    lines[1] = forged;
    assert_eq!(broken(&lines.concat()), (3, Some(3), Fault::Unchained));
}

#[test]
fn lines_that_are_missing_repeated_or_elsewhere_are_named() {
    let bytes = TestLog::with(5).bytes();
    let lines = lines(&bytes);
    let pick = |order: &[usize]| order.iter().flat_map(|at| lines[*at].to_vec()).collect::<Vec<_>>();
    for (order, line, seq, fault) in [
        (&[0, 1, 3, 4][..], 3, 4, Fault::Missing(3)),
        (&[0, 1, 1, 2, 3, 4], 3, 2, Fault::Repeated(3)),
        (&[0, 2, 1, 3, 4], 2, 3, Fault::Missing(2)),
        (&[0, 1, 2, 3, 4, 0], 6, 1, Fault::Repeated(6)),
        (&[1, 0], 2, 1, Fault::Repeated(3)),
    ] {
        assert_eq!(broken(&pick(order)), (line, Some(seq), fault), "{order:?}");
    }
    // what cannot be known from the file alone
    assert_eq!(verify(&pick(&[2, 3, 4])).unwrap().first.unwrap().seq, 3);
    assert_eq!(verify(&pick(&[0, 1, 2])).unwrap().records, 3);
    assert_eq!(broken(&[&bytes[..], b"\n"].concat()), (6, Some(6), Fault::NoRecord));
    assert_eq!(broken(&bytes[..bytes.len() - 1]), (5, Some(5), Fault::Unfinished));
}

#[test]
fn lines_without_an_end_cost_bounded_memory() {
    let endless = std::io::BufReader::new(std::io::Read::take(std::io::repeat(b'x'), 1 << 32));
    let error = Verifier::new().read(endless).unwrap_err();
    assert!(matches!(error, VerifyError::Broken { line: 1, fault: Fault::TooLong, .. }), "{error}");
}

/// Whatever is behind the last whole line.
#[test]
fn a_log_torn_at_any_byte_is_gone_on_with() {
    let whole = TestLog::with(3).bytes();
    let ends: Vec<usize> = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    for length in 0..whole.len() {
        let test_log = TestLog::new();
        fs::write(test_log.path(), &whole[..length]).unwrap();
        let kept = ends.iter().copied().filter(|end| *end <= length).max().unwrap_or(0);
        let seq = append(&mut test_log.open(0, 0));
        assert_eq!(seq, 1 + ends.iter().filter(|end| **end <= length).count() as u64);
        assert!(test_log.bytes().starts_with(&whole[..kept]));
        let aside = if kept < length { vec![whole[kept..length].to_vec()] } else { vec![] };
        assert_eq!(test_log.set_aside(), aside);
        assert_eq!(verify(&test_log.bytes()).unwrap().records, seq);
    }
}

#[test]
fn what_is_no_log_is_set_aside() {
    let long = vec![b'x'; 3 * MAX_LINE];
    for strange in [&b"\n"[..], b"some other log\n", b"{\"seq\":1}\n", &[0; 5000], &long] {
        let test_log = TestLog::new();
        fs::write(test_log.path(), strange).unwrap();
        let config = AuditConfig::default();
        let (mut log, aside) = Log::open(test_log.path(), &config).unwrap();
        assert_eq!((append(&mut log), aside.unwrap().bytes), (1, strange.len() as u64));
        assert_eq!(test_log.set_aside(), [strange]);
        // and behind lines that are whole
        let test_log = TestLog::with(2);
        let before = test_log.bytes();
        fs::write(test_log.path(), [&before, strange].concat()).unwrap();
        assert_eq!(append(&mut test_log.open(0, 0)), 3);
        assert_eq!(test_log.set_aside(), [strange]);
        assert_eq!(test_log.verify().0, 0);
    }
}

#[test]
fn rotation_at_any_size_keeps_the_chain() {
    let record = TestLog::with(1).bytes().len() as u64;
    for max_bytes in (1..=3).flat_map(|lines| [lines * record - 1, lines * record, lines * record + 1]) {
        let test_log = TestLog::new();
        for _ in 0..3 {
            // also when the restart is at the boundary
            let mut log = test_log.open(max_bytes, 0);
            append_many(&mut log, 3);
        }
        let rotated = files::rotated(&test_log.path()).unwrap();
        assert!(rotated.len() >= 2, "{max_bytes}");
        for (first, path) in &rotated {
            let summary = verify(&fs::read(path).unwrap()).unwrap();
            assert_eq!(summary.first.unwrap().seq, *first);
            assert!(fs::metadata(path).unwrap().len() <= max_bytes.max(record + 10));
        }
        let (code, said) = test_log.verify();
        assert!(code == 0 && said.starts_with("valid: 9 records in "), "{max_bytes}: {said}");
    }
}

#[test]
fn a_rotation_that_was_cut_short_is_gone_on_with() {
    let test_log = TestLog::with(2);
    fs::rename(test_log.path(), files::rotated_name(&test_log.path(), 1)).unwrap();
    assert_eq!(append(&mut test_log.open(0, 0)), 3);
    assert_eq!(test_log.verify().0, 0);
    // the same, and the new file was made
    fs::rename(test_log.path(), files::rotated_name(&test_log.path(), 3)).unwrap();
    fs::write(test_log.path(), "").unwrap();
    assert_eq!(append(&mut test_log.open(0, 0)), 4);
    let (code, said) = test_log.verify();
    assert!(code == 0 && said.starts_with("valid: 4 records in 3 files"), "{said}");
}

#[test]
fn a_rotated_file_that_is_missing_is_named() {
    let test_log = TestLog::new();
    let mut log = test_log.open(1, 0);
    append_many(&mut log, 5);
    fs::remove_file(files::rotated_name(&test_log.path(), 3)).unwrap();
    let (code, said) = test_log.verify();
    assert_eq!(code, 1);
    assert!(
        said.contains("audit.log.000000000004: line 1 (seq 4): records are missing before it: expected 3"),
        "{said}"
    );
}

#[test]
fn of_rotated_files_the_oldest_go() {
    let test_log = TestLog::new();
    let mut log = test_log.open(1, 2);
    append_many(&mut log, 6);
    let kept: Vec<u64> = files::rotated(&test_log.path()).unwrap().into_iter().map(|(first, _)| first).collect();
    assert_eq!(kept, [4, 5]);
    let (code, said) = test_log.verify();
    assert!(code == 0 && said.contains("after 3 earlier records"), "{said}");
}

#[test]
fn a_file_that_cannot_be_rotated_grows() {
    let test_log = TestLog::new();
    let mut log = test_log.open(1, 0);
    append(&mut log);
    fs::write(files::rotated_name(&test_log.path(), 1), "in the way").unwrap();
    append(&mut log);
    append(&mut log);
    assert_eq!(verify(&test_log.bytes()).unwrap().records, 3);
    assert_eq!(fs::read(files::rotated_name(&test_log.path(), 1)).unwrap(), b"in the way");
}

#[test]
fn a_file_that_was_moved_away_is_replaced_when_that_is_asked_for() {
    let test_log = TestLog::with(2);
    let moved = test_log.0.path().join("elsewhere");
    let mut log = test_log.open(0, 0);
    assert!(!log.reopen().unwrap());
    fs::rename(test_log.path(), &moved).unwrap();
    append(&mut log);
    assert!(!test_log.path().exists());
    assert!(log.reopen().unwrap());
    append(&mut log);
    assert_eq!(verify(&[fs::read(&moved).unwrap(), test_log.bytes()].concat()).unwrap().records, 4);
    fs::rename(test_log.path(), &moved).unwrap();
    fs::write(test_log.path(), "someone else's").unwrap();
    log.reopen().unwrap_err();
    append(&mut log);
    assert_eq!(verify(&fs::read(&moved).unwrap()).unwrap().records, 2);
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o777
}

#[test]
fn files_are_private_and_belong_to_one_agent() {
    let test_log = TestLog::new();
    let path = test_log.0.path().join("a/b/audit.log");
    let open = || Log::open(path.clone(), &AuditConfig { max_bytes: 1, ..AuditConfig::default() });
    let (mut log, _) = open().unwrap();
    append(&mut log);
    append(&mut log);
    for file in [&path, &files::rotated_name(&path, 1)] {
        assert_eq!(mode(file), 0o600);
    }
    assert_eq!((mode(path.parent().unwrap()), mode(&test_log.0.path().join("a"))), (0o700, 0o700));
    assert!(open().unwrap_err().to_string().contains("another agent"));
    drop(log);
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    drop(open().unwrap());
    assert_eq!(mode(&path), 0o600);
    let target = test_log.0.path().join("target");
    fs::write(&target, "precious").unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&target, &path).unwrap();
    open().unwrap_err();
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    open().unwrap_err();
}
