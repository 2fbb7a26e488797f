use proptest::prelude::*;

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use telexec_executor::{Output, OutputStream};

use super::{Spool, SpoolFile, Stopped};
use crate::SpoolLimits;
use crate::recovery::handover;
use crate::state::directory::{DIRECTORY_PREFIX, LOCK, lock_directory};
use crate::state::disk::Disk;

fn spool(limits: SpoolLimits) -> (tempfile::TempDir, Arc<Spool>) {
    let state = tempfile::tempdir().unwrap();
    let (spool, _) = handover::open(Disk::new().unwrap(), Some(state.path()), limits, &mut []).unwrap();
    (state, spool)
}

fn output(stream: OutputStream, data: &[u8], position: u64) -> Output {
    Output { stream, data: Bytes::copy_from_slice(data), position }
}

/// Each byte with its stream.
fn bytes(chunks: &[Output]) -> Vec<(OutputStream, u8)> {
    chunks.iter().flat_map(|chunk| chunk.data.iter().map(|byte| (chunk.stream, *byte))).collect()
}

fn read_all(file: &SpoolFile, from: u64, end: u64) -> Vec<(OutputStream, u8)> {
    let (mut position, mut found) = (from, Vec::new());
    while position < end {
        let chunks = file.read_now(position, end).unwrap();
        assert_eq!(chunks.first().unwrap().position, position);
        position += chunks.iter().map(|chunk| chunk.data.len() as u64).sum::<u64>();
        found.extend(bytes(&chunks));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]
    #[test]
    fn what_was_written_is_read_from_anywhere(
        pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 1..40)), 1..1500),
        batch in 1..50usize,
        from in 0.0..1.0f64,
    ) {
        let (_state, spool) = spool(SpoolLimits::default());
        let file = spool.file("owner");
        let mut chunks = Vec::new();
        let mut end = 0;
        for (is_err, data) in &pieces {
            let stream = if *is_err { OutputStream::Stderr } else { OutputStream::Stdout };
            chunks.push(output(stream, data, end));
            end += data.len() as u64;
        }
        for batch in chunks.chunks(batch) {
            prop_assert!(file.append_now(batch).1.is_none());
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let from = (end as f64 * from) as u64;
        let expected = bytes(&chunks).split_off(usize::try_from(from).unwrap());
        prop_assert_eq!(read_all(&file, from, end), expected);
    }
}

#[tokio::test]
async fn limits_hold_and_what_is_removed_makes_room() {
    let (_state, spool) = spool(SpoolLimits { execution: 100, identity: 1000, total: 150 });
    let one = spool.file("owner");
    let (end, stopped) = one.append_now(&[output(OutputStream::Stdout, &[1; 200], 0)]);
    assert!(end == 92 && matches!(stopped, Some(Stopped::Limit)));
    assert_eq!(read_all(&one, 0, 92).len(), 92);
    let two = spool.file("owner");
    let (end, stopped) = two.append_now(&[output(OutputStream::Stderr, &[2; 60], 0)]);
    assert!(end == 42 && matches!(stopped, Some(Stopped::Full(_))));
    assert!(spool.full("owner").await.unwrap().is_some());
    one.remove().await;
    let (end, stopped) = two.append_now(&[output(OutputStream::Stderr, &[2; 18], 42)]);
    assert!(end == 60 && stopped.is_none());
    assert_eq!(read_all(&two, 0, 60).len(), 60);
    assert!(spool.full("owner").await.unwrap().is_none());
    two.remove().await;
    assert!(spool.used.is_empty());
    assert_eq!(fs::read_dir(spool.directory().path()).unwrap().count(), 0);
}

#[test]
fn files_are_private_and_those_of_the_dead_are_removed() {
    use std::os::unix::fs::PermissionsExt;

    let (state, spool) = spool(SpoolLimits::default());
    let file = spool.file("owner");
    file.append_now(&[output(OutputStream::Stdout, b"x", 0)]);
    for path in [&file.data, &file.index] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    // as anyone can who may open it
    let _locked = lock_directory(state.path()).unwrap();
    let dead = state.path().join(format!("{DIRECTORY_PREFIX}dead"));
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("0.output"), "x").unwrap();
    let (other, inherited) =
        handover::open(Disk::new().unwrap(), Some(state.path()), SpoolLimits::default(), &mut []).unwrap();
    assert!(inherited.is_empty());
    assert!(!dead.exists() && file.data.exists());
    assert_eq!(fs::metadata(state.path().join(LOCK)).unwrap().permissions().mode() & 0o777, 0o600);
    drop(other);
}
